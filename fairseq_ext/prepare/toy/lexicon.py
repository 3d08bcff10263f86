"""The words of the built-in corpus: one row per word, ``_`` for a space, ``-`` for nothing.

No English form stands for two German ones in the same place: verbs whose past looks like their
present ("read", "put") and nouns whose plural looks like their singular are left out.
"""

from collections import namedtuple

CASES = ("nom", "acc", "dat")

# Gender "w" is a weak masculine, whose other cases look like its plural.
Noun = namedtuple("Noun", "kind english english_plural german gender plural")
# `stem` takes the endings; `kinds` are those of the nouns it goes with.
Adjective = namedtuple("Adjective", "english german stem kinds")
# An article or its like: its own endings, and those it leaves to the adjective.
Determiner = namedtuple("Determiner", "english number stem endings adjective status weight")
# Person 0, 1, 2 is ich, du, er or sie; 3 is any plural.
Pronoun = namedtuple("Pronoun", "english english_object nom acc dat person")
# `slots` are what it asks for: "case:kinds", or "English:German:case:kinds" with a preposition.
Verb = namedtuple(
    "Verb", "subjects english past prefix infinitive du er participle auxiliary slots"
)
Adverb = namedtuple("Adverb", "english german tenses")
# The times it joins, and whether a modal may follow it.
Conjunction = namedtuple("Conjunction", "english german times modal")


def table(row: type, text: str) -> list:
    """One ``row`` per line of ``text``; what is left over goes, as it is, into the last column."""
    width = len(row._fields)
    lines = (line.split(maxsplit=width - 1) for line in text.strip().split("\n"))
    return [row(*("" if f == "-" else f.replace("_", " ") for f in fields)) for fields in lines]


NOUNS = table(
    Noun,
    """
person   man men             Mann m Männer
person   woman women         Frau f Frauen
person   child children      Kind n Kinder
person   boy boys            Junge w Jungen
person   girl girls          Mädchen n Mädchen
person   teacher teachers    Lehrer m Lehrer
person   doctor doctors      Arzt m Ärzte
person   friend friends      Freund m Freunde
person   sister sisters      Schwester f Schwestern
person   brother brothers    Bruder m Brüder
person   mother mothers      Mutter f Mütter
person   daughter daughters  Tochter f Töchter
person   neighbour neighbours Nachbar w Nachbarn
person   student students    Student w Studenten
person   guest guests        Gast m Gäste
animal   dog dogs            Hund m Hunde
animal   cat cats            Katze f Katzen
animal   horse horses        Pferd n Pferde
animal   bird birds          Vogel m Vögel
food     apple apples        Apfel m Äpfel
food     cake cakes          Kuchen m Kuchen
food     egg eggs            Ei n Eier
food     soup soups          Suppe f Suppen
text     letter letters      Brief m Briefe
text     book books          Buch n Bücher
text     newspaper newspapers Zeitung f Zeitungen
text     picture pictures    Bild n Bilder
clothes  coat coats          Mantel m Mäntel
clothes  shirt shirts        Hemd n Hemden
clothes  jacket jackets      Jacke f Jacken
thing    key keys            Schlüssel m Schlüssel
thing    flower flowers      Blume f Blumen
thing    gift gifts          Geschenk n Geschenke
device   lamp lamps          Lampe f Lampen
device   computer computers  Computer m Computer
device   radio radios        Radio n Radios
opening  door doors          Tür f Türen
opening  window windows      Fenster n Fenster
opening  box boxes           Kasten m Kästen
vehicle  car cars            Auto n Autos
vehicle  train trains        Zug m Züge
vehicle  bus buses           Bus m Busse
building house houses        Haus n Häuser
building school schools      Schule f Schulen
building church churches     Kirche f Kirchen
building shop shops          Laden m Läden
area     garden gardens      Garten m Gärten
area     city cities         Stadt f Städte
area     village villages    Dorf n Dörfer
area     forest forests      Wald m Wälder
""",
)

ADJECTIVES = table(
    Adjective,
    """
old       alt       alt     person+animal+text+clothes+device+vehicle+building+area+opening
small     klein     klein   person+animal+food+text+thing+device+building+area+opening
big       groß      groß    animal+food+thing+opening+vehicle+building+area
beautiful schön     schön   animal+text+clothes+thing+vehicle+building+area
new       neu       neu     text+clothes+thing+device+vehicle+building
red       rot       rot     food+clothes+thing+vehicle+opening
blue      blau      blau    clothes+thing+vehicle+opening
black     schwarz   schwarz animal+clothes+vehicle+device
white     weiß      weiß    animal+clothes+building+opening
expensive teuer     teur    clothes+device+vehicle+text
cheap     billig    billig  clothes+device+food
dark      dunkel    dunkl   area+building
quiet     ruhig     ruhig   area+building+animal
fresh     frisch    frisch  food
young     jung      jung    person+animal
friendly  freundlich freundlich person
tired     müde      müd     person+animal
sick      krank     krank   person+animal
happy     glücklich glücklich person
clever    klug      klug    person+animal
rich      reich     reich   person
famous    berühmt   berühmt person+text
""",
)

DETERMINERS = table(
    Determiner,
    """
the   both -     der    weak   definite   9
this  sg   dies  strong weak   definite   3
these pl   dies  strong weak   definite   3
a     sg   ein   ein    mixed  indefinite 7
-     pl   -     none   strong indefinite 4
my    both mein  ein    mixed  definite   2
your  both dein  ein    mixed  definite   1
his   both sein  ein    mixed  definite   1
her   both ihr   ein    mixed  definite   1
our   both unser ein    mixed  definite   1
every sg   jed   strong weak   quantity   1
two   pl   zwei  none   strong quantity   1
many  pl   viel  strong strong quantity   1
""",
)
NO = Determiner("no", "both", "kein", "ein", "mixed", "indefinite", "0")

# Columns are masculine, feminine, neuter, plural; rows are the cases in the order of CASES.
ENDINGS = {
    "der": ("der die das die", "den die das die", "dem der dem den"),
    "ein": ("- e - e", "en e - e", "em er em en"),
    "strong": ("er e es e", "en e es e", "em er em en"),
    "weak": ("e e e en", "en e e en", "en en en en"),
    "mixed": ("er e es en", "en e es en", "en en en en"),
    "none": ("- - - -", "- - - -", "- - - -"),
}

CONTRACTIONS = {
    "in dem": "im",
    "in das": "ins",
    "von dem": "vom",
    "zu dem": "zum",
    "zu der": "zur",
}

PRONOUNS = table(
    Pronoun,
    """
I    me   ich mich mir   0
you  you  du  dich dir   1
he   him  er  ihn  ihm   2
she  her  sie sie  ihr   2
we   us   wir uns  uns   3
they them sie sie  ihnen 3
""",
)

VERBS = table(
    Verb,
    """
person open opened            auf machen machst macht aufgemacht haben     acc:opening
person close closed           zu machen machst macht zugemacht haben       acc:opening
person call called            an rufen rufst ruft angerufen haben          acc:person
person invite invited         ein laden lädst lädt eingeladen haben        acc:person
person fetch fetched          ab holen holst holt abgeholt haben           acc:person
person look_at looked_at      an sehen siehst sieht angesehen haben        acc:text+building+clothes
person turn_on turned_on      ein schalten schaltest schaltet eingeschaltet haben acc:device
person turn_off turned_off    aus schalten schaltest schaltet ausgeschaltet haben acc:device
person try_on tried_on        an probieren probierst probiert anprobiert haben    acc:clothes
person see saw                - sehen siehst sieht gesehen haben     acc:person+animal+vehicle
person buy bought             - kaufen kaufst kauft gekauft haben    acc:clothes+vehicle+food+device
person sell sold              - verkaufen verkaufst verkauft verkauft haben acc:vehicle+food+thing
person eat ate                - essen isst isst gegessen haben       acc:food
person look_for looked_for    - suchen suchst sucht gesucht haben    acc:thing+animal+person
person find found             - finden findest findet gefunden haben acc:thing+animal+clothes
person love loved             - lieben liebst liebt geliebt haben    acc:person+animal
person visit visited          - besuchen besuchst besucht besucht haben acc:person+area
person meet met               - treffen triffst trifft getroffen haben  acc:person
person know knew              - kennen kennst kennt gekannt haben    acc:person+area
person repair repaired        - reparieren reparierst repariert repariert haben acc:vehicle+device
person forget forgot          - vergessen vergisst vergisst vergessen haben acc:thing+text
person listen_to listened_to  zu hören hörst hört zugehört haben     dat:person
person watch watched          zu sehen siehst sieht zugesehen haben  dat:person+animal
person help helped            - helfen hilfst hilft geholfen haben   dat:person
person thank thanked          - danken dankst dankt gedankt haben    dat:person
person answer answered        - antworten antwortest antwortet geantwortet haben dat:person
person trust trusted          - vertrauen vertraust vertraut vertraut haben dat:person+animal
person+animal follow followed - folgen folgst folgt gefolgt sein     dat:person+animal
thing+text+vehicle+clothes belong_to belonged_to - gehören gehörst gehört gehört haben dat:person
person give gave              - geben gibst gibt gegeben haben       dat:person acc:thing+food+text
person show showed            - zeigen zeigst zeigt gezeigt haben    dat:person acc:text+building
person send sent              - schicken schickst schickt geschickt haben dat:person acc:text+thing
person offer offered          an bieten bietest bietet angeboten haben dat:person acc:food+vehicle
person wait_for waited_for    - warten wartest wartet gewartet haben :auf:acc:person+vehicle
person think_of thought_of    - denken denkst denkt gedacht haben    :an:acc:person
person dream_of dreamt_of     - träumen träumst träumt geträumt haben :von:dat:animal+vehicle+area
person talk_about talked_about - sprechen sprichst spricht gesprochen haben :über:acc:text+person
person play played            - spielen spielst spielt gespielt haben  with:mit:dat:person+animal
person+animal sleep slept     - schlafen schläfst schläft geschlafen haben where
person work worked            - arbeiten arbeitest arbeitet gearbeitet haben where
person live lived             - wohnen wohnst wohnt gewohnt haben    in:in:dat:area+building
person+animal run ran         - laufen läufst läuft gelaufen sein    whither
person go went                - gehen gehst geht gegangen sein       whither
person+animal come_back came_back zurück kommen kommst kommt zurückgekommen sein -
person get_up got_up          auf stehen stehst steht aufgestanden sein -
person+animal fall_asleep fell_asleep ein schlafen schläfst schläft eingeschlafen sein -
person+vehicle arrive arrived an kommen kommst kommt angekommen sein -
vehicle stop stopped          an halten hältst hält angehalten haben -
""",
)

# Verbs that take a clause: the last column is its conjunction in both languages.
CLAUSAL_VERBS = table(
    Verb,
    """
person know knew         - wissen weißt weiß gewusst haben     that dass
person say said          - sagen sagst sagt gesagt haben       that dass
person hope hoped        - hoffen hoffst hofft gehofft haben   that dass
person believe believed  - glauben glaubst glaubt geglaubt haben that dass
person ask asked         - fragen fragst fragt gefragt haben   whether ob
""",
)

BE = Verb(
    "+".join(dict.fromkeys(noun.kind for noun in NOUNS)), "be", "", "", "sein", "", "", "", "", ""
)

PLACES = {
    "where": (
        "in:in:dat:area+building",
        "behind:hinter:dat:building",
        "next to:neben:dat:building+opening",
    ),
    "whither": (
        "into:in:acc:area+building",
        "through:durch:acc:area",
        "to:zu:dat:person",
        "out of:aus:dat:building",
    ),
}

MODALS = {"can": "können", "must": "müssen", "will": "werden", "should": "sollten"}

# What the forms of a verb row do not give: ich, du, er, plural.
FINITE = {
    "sein": "bin bist ist sind",
    "waren": "war warst war waren",
    "haben": "habe hast hat haben",
    "werden": "werde wirst wird werden",
    "können": "kann kannst kann können",
    "müssen": "muss musst muss müssen",
    "sollten": "sollte solltest sollte sollten",
    "wissen": "weiß weißt weiß wissen",
}

ADVERBS = table(
    Adverb,
    """
today          heute        present+past+modal
now            jetzt        present
every_day      jeden_Tag    present
yesterday      gestern      past
last_week      letzte_Woche past
tomorrow       morgen       modal
soon           bald         modal
in_the_evening am_Abend     present+past+modal
on_Sunday      am_Sonntag   present+past+modal
""",
)

CONJUNCTIONS = table(
    Conjunction,
    """
because  weil    present+past yes
although obwohl  present+past yes
if       wenn    present      no
when     wenn    present      no
when     als     past         no
before   bevor   present+past no
""",
)
