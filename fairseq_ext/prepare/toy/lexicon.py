"""The words of the built-in corpus, in English and German, as tables of text.

A row is a line, its columns are separated by spaces, and _ stands for a space within a word.
"""

from typing import NamedTuple


class Noun(NamedTuple):
    """A noun; its kind says which verbs and adjectives it goes with."""

    kind: str
    english: str
    english_plural: str
    german: str
    gender: str
    plural: str


class Adjective(NamedTuple):
    """An adjective with the stem that German endings follow."""

    english: str
    stem: str
    kinds: str


class Determiner(NamedTuple):
    """An article or possessive: its German endings and those of an adjective behind it."""

    english: str
    number: str
    stem: str
    endings: str
    adjective: str
    known: str


class Pronoun(NamedTuple):
    """A pronoun as a subject; person 0 is "ich", 1 is "er" and 2 the plural."""

    english: str
    german: str
    person: str


class Verb(NamedTuple):
    """A verb: German prefix, forms for ich and er, and the objects it takes.

    An object is CASE:KINDS, or ENGLISH:GERMAN:CASE:KINDS with prepositions; a comma separates two.
    """

    subjects: str
    english: str
    past: str
    prefix: str
    infinitive: str
    ich: str
    er: str
    participle: str
    auxiliary: str
    objects: str


def table(row: type, text: str) -> list:
    """Return the rows of a table; a column that is only - is empty."""
    lines = (line.split() for line in text.strip().splitlines())
    return [row(*(cell.replace("_", " ").strip("-") for cell in line)) for line in lines]


NOUNS = table(
    Noun,
    """
person   man men             Mann m Männer
person   woman women         Frau f Frauen
person   child children      Kind n Kinder
person   girl girls          Mädchen n Mädchen
person   teacher teachers    Lehrer m Lehrer
person   friend friends      Freund m Freunde
person   sister sisters      Schwester f Schwestern
animal   dog dogs            Hund m Hunde
animal   cat cats            Katze f Katzen
animal   horse horses        Pferd n Pferde
food     apple apples        Apfel m Äpfel
food     soup soups          Suppe f Suppen
food     egg eggs            Ei n Eier
text     letter letters      Brief m Briefe
text     newspaper newspapers Zeitung f Zeitungen
text     book books          Buch n Bücher
thing    key keys            Schlüssel m Schlüssel
thing    lamp lamps          Lampe f Lampen
thing    gift gifts          Geschenk n Geschenke
opening  box boxes           Kasten m Kästen
opening  door doors          Tür f Türen
opening  window windows      Fenster n Fenster
place    garden gardens      Garten m Gärten
place    city cities         Stadt f Städte
place    house houses        Haus n Häuser
""",
)

ADJECTIVES = table(
    Adjective,
    """
old       alt    person+animal+text+thing+opening+place
small     klein  person+animal+food+text+thing+opening+place
big       groß   animal+food+thing+opening+place
beautiful schön  animal+text+thing+place
new       neu    text+thing+opening+place
red       rot    food+thing+opening
black     schwarz animal+thing+opening
dark      dunkl  opening+place
fresh     frisch food
young     jung   person+animal
tired     müd    person+animal
clever    klug   person+animal
""",
)

DETERMINERS = table(
    Determiner,
    """
the   both - -   weak  yes
this  sg   dies der weak   yes
these pl   dies der weak   yes
a     sg   ein ein mixed   -
-     pl   -   none strong -
my    both mein ein mixed  yes
his   both sein ein mixed  yes
her   both ihr ein mixed   yes
our   both unser ein mixed yes
""",
)

# Columns are masculine, feminine, neuter, plural; rows are the cases.
ENDINGS = {
    "the": {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den"},
    "der": {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en"},
    "ein": {"nom": "- e - e", "acc": "en e - e", "dat": "em er em en"},
    "weak": {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en"},
    "mixed": {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en"},
    "strong": {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en"},
    "none": dict.fromkeys(("nom", "acc", "dat"), "- - - -"),
}

PRONOUNS = table(
    Pronoun,
    """
I    ich 0
he   er  1
she  sie 1
we   wir 2
they sie 2
""",
)

VERBS = table(
    Verb,
    """
person open opened      auf machen mache macht aufgemacht haben   acc:opening
person close closed     zu machen mache macht zugemacht haben     acc:opening
person call called      an rufen rufe ruft angerufen haben        acc:person
person invite invited   ein laden lade lädt eingeladen haben      acc:person
person fetch fetched    ab holen hole holt abgeholt haben         acc:person+thing
person see saw          - sehen sehe sieht gesehen haben          acc:person+animal+place
person buy bought       - kaufen kaufe kauft gekauft haben        acc:food+text+thing
person eat ate          - essen esse isst gegessen haben          acc:food
person find found       - finden finde findet gefunden haben      acc:thing+animal+text
person love loved       - lieben liebe liebt geliebt haben        acc:person+animal
person visit visited    - besuchen besuche besucht besucht haben  acc:person+place
person write wrote      - schreiben schreibe schreibt geschrieben haben acc:text
person listen_to listened_to zu hören höre hört zugehört haben    dat:person
person help helped      - helfen helfe hilft geholfen haben       dat:person
person thank thanked    - danken danke dankt gedankt haben        dat:person
person+animal follow followed - folgen folge folgt gefolgt sein   dat:person+animal
person give gave        - geben gebe gibt gegeben haben           dat:person,acc:thing+food+text
person show showed      - zeigen zeige zeigt gezeigt haben        dat:person,acc:text+place
person wait_for waited_for - warten warte wartet gewartet haben   :auf:acc:person+animal
person dream_of dreamt_of - träumen träume träumt geträumt haben  :von:dat:animal+place
person work worked      - arbeiten arbeite arbeitet gearbeitet haben in:in:dat:place
person+animal sleep slept - schlafen schlafe schläft geschlafen haben in:in:dat:place
person+animal run ran   - laufen laufe läuft gelaufen sein        through:durch:acc:place
""",
)

CLAUSAL_VERBS = table(
    Verb,
    """
person know knew  - wissen weiß weiß gewusst haben       that:dass
person say said   - sagen sage sagt gesagt haben         that:dass
person hope hoped - hoffen hoffe hofft gehofft haben     that:dass
person ask asked  - fragen frage fragt gefragt haben     whether:ob
""",
)

AUXILIARIES = {
    "haben": "habe hat haben",
    "sein": "bin ist sind",
    "werden": "werde wird werden",
}
ADVERBS = {
    "present": (("today", "heute"), ("now", "jetzt"), ("every day", "jeden Tag")),
    "past": (("yesterday", "gestern"), ("last week", "letzte Woche")),
    "future": (("tomorrow", "morgen"), ("soon", "bald")),
}
CONJUNCTIONS = (("because", "weil"), ("although", "obwohl"), ("before", "bevor"))
CONTRACTIONS = {"in dem": "im", "von dem": "vom"}
