"""The grammar of the built-in corpus against sentences written by hand."""

import pytest

from fairseq_ext.prepare.toy import grammar, lexicon
from fairseq_ext.prepare.toy.grammar import Clause, Phrase


def find(rows: list, english: str):
    (row,) = [row for row in rows if row.english == english]
    return row


def noun_phrase(text: str, **options) -> Phrase:
    """An article ("-" for none), perhaps an adjective, a noun."""
    article, *adjectives, word = text.split()
    noun = next(n for n in lexicon.NOUNS if word in (n.english, n.english_plural))
    adjective = find(lexicon.ADJECTIVES, adjectives[0]) if adjectives else None
    determiner = find(lexicon.DETERMINERS, {"-": "", "an": "a"}.get(article, article))
    plural = word == noun.english_plural
    return grammar.noun_phrase(noun, determiner, adjective, plural=plural, **options)


def phrase(text: str) -> Phrase:
    """A pronoun in either form, or a noun phrase; "(kein)" before it makes it negative."""
    for pronoun in [*grammar.PRONOUNS, grammar.WHO]:
        if text in (pronoun.english, pronoun.objective):
            return pronoun
    return noun_phrase(text.removeprefix("(kein) "), negative=text.startswith("(kein)"))


def clause(subject: str, verb: str, *objects: str, place: str = "", **rest) -> Clause:
    row = find(lexicon.VERBS, verb)
    slots = map(grammar.slot, [place] if place else row.slots.split())
    if "adverb" in rest:
        rest["adverb"] = find(lexicon.ADVERBS, rest["adverb"])
    return Clause(
        phrase(subject), row, tuple(zip(slots, map(phrase, objects), strict=True)), **rest
    )


def be(subject: str, adjective: str, **rest) -> Clause:
    predicate = find(lexicon.ADJECTIVES, adjective)
    return Clause(phrase(subject), lexicon.BE, predicate=predicate, **rest)


NO = {"negative": True}
PAST = {"tense": "past"}

STATEMENTS = [
    # gender, case, adjective endings
    clause("the old man", "give", "the small child", "a red apple"),
    "the old man gives the small child a red apple",
    "der alte Mann gibt dem kleinen Kind einen roten Apfel",
    clause("a young woman", "love", "every black horse"),
    "a young woman loves every black horse",
    "eine junge Frau liebt jedes schwarze Pferd",
    clause("a small girl", "buy", "an old car"),
    "a small girl buys an old car",
    "ein kleines Mädchen kauft ein altes Auto",
    clause("these rich doctors", "visit", "my sick mother"),
    "these rich doctors visit my sick mother",
    "diese reichen Ärzte besuchen meine kranke Mutter",
    clause("- young children", "watch", "two small birds"),
    "young children watch two small birds",
    "junge Kinder sehen zwei kleinen Vögeln zu",
    clause("many tired guests", "trust", "our clever dogs"),
    "many tired guests trust our clever dogs",
    "viele müde Gäste vertrauen unseren klugen Hunden",
    clause("this neighbour", "know", "the famous student"),
    "this neighbour knows the famous student",
    "dieser Nachbar kennt den berühmten Studenten",
    clause("the key", "belong to", "the boy"),
    "the key belongs to the boy",
    "der Schlüssel gehört dem Jungen",
    clause("a young student", "answer", "the women"),
    "a young student answers the women",
    "ein junger Student antwortet den Frauen",
    clause("her clever sister", "dream of", "two new cars"),
    "her clever sister dreams of two new cars",
    "ihre kluge Schwester träumt von zwei neuen Autos",
    # agreement, pronouns
    clause("I", "thank", "you"),
    "I thank you",
    "ich danke dir",
    clause("you", "meet", "him"),
    "you meet him",
    "du triffst ihn",
    clause("she", "help", "us"),
    "she helps us",
    "sie hilft uns",
    clause("they", "show", "her", "a picture"),
    "they show her a picture",
    "sie zeigen ihr ein Bild",
    # prepositions: where is dative, whither accusative; contractions
    clause("the cat", "sleep", "a dark forest", place="in:in:dat:area"),
    "the cat sleeps in a dark forest",
    "die Katze schläft in einem dunklen Wald",
    clause("the man", "go", "the dark garden", place="into:in:acc:area"),
    "the man goes into the dark garden",
    "der Mann geht in den dunklen Garten",
    clause("we", "go", "the village", place="into:in:acc:area"),
    "we go into the village",
    "wir gehen ins Dorf",
    clause("I", "run", "the sister", place="to:zu:dat:person"),
    "I run to the sister",
    "ich laufe zur Schwester",
    clause("you", "run", "the doctor", place="to:zu:dat:person"),
    "you run to the doctor",
    "du läufst zum Arzt",
    clause("she", "live", "the new house"),
    "she lives in the new house",
    "sie wohnt im neuen Haus",
    clause("he", "dream of", "the bus"),
    "he dreams of the bus",
    "er träumt vom Bus",
    clause("she", "wait for", "me"),
    "she waits for me",
    "sie wartet auf mich",
    # separable verbs
    clause("my brother", "open", "the small window"),
    "my brother opens the small window",
    "mein Bruder macht das kleine Fenster auf",
    clause("you", "invite", "every guest"),
    "you invite every guest",
    "du lädst jeden Gast ein",
    clause("the bus", "stop"),
    "the bus stops",
    "der Bus hält an",
    clause("she", "close", "the door", tense="must"),
    "she must close the door",
    "sie muss die Tür zumachen",
    # the Perfekt with haben and sein; war
    clause("I", "call", "the teacher", **PAST),
    "I called the teacher",
    "ich habe den Lehrer angerufen",
    clause("you", "get up", **PAST),
    "you got up",
    "du bist aufgestanden",
    clause("the dog", "follow", "the children", **PAST),
    "the dog followed the children",
    "der Hund ist den Kindern gefolgt",
    be("the doors", "white", **PAST),
    "the doors were white",
    "die Türen waren weiß",
    # time: after known objects, before new ones; in front, the subject follows the verb
    clause("he", "sell", "the car", adverb="today"),
    "he sells the car today",
    "er verkauft das Auto heute",
    clause("he", "sell", "a car", adverb="today"),
    "he sells a car today",
    "er verkauft heute ein Auto",
    clause("he", "send", "his daughter", "- letters", adverb="every day"),
    "he sends his daughter letters every day",
    "er schickt seiner Tochter jeden Tag Briefe",
    clause("the train", "arrive", **PAST, front=("yesterday", "gestern")),
    "yesterday the train arrived",
    "gestern ist der Zug angekommen",
    # negation
    clause("the man", "see", "(kein) a dog", **NO),
    "the man does not see a dog",
    "der Mann sieht keinen Hund",
    clause("they", "buy", "(kein) - new lamps", **NO),
    "they do not buy new lamps",
    "sie kaufen keine neuen Lampen",
    clause("we", "fetch", "her", adverb="today", **NO),
    "we do not fetch her today",
    "wir holen sie heute nicht ab",
    clause("you", "think of", "the gift", **NO, **PAST),
    "you did not think of the gift",
    "du hast nicht an das Geschenk gedacht",
    clause("he", "work", "the shop", place="in:in:dat:building", tense="can", **NO),
    "he cannot work in the shop",
    "er kann nicht im Laden arbeiten",
    be("I", "sick", **NO),
    "I am not sick",
    "ich bin nicht krank",
]

VERB_LAST = [
    clause("the man", "help", "her"),
    "the man helps her",
    "der Mann ihr hilft",
    clause("you", "open", "a box"),
    "you open a box",
    "du einen Kasten aufmachst",
    clause("my friends", "come back", **PAST),
    "my friends came back",
    "meine Freunde zurückgekommen sind",
    clause("she", "turn off", "the radio", tense="will"),
    "she will turn off the radio",
    "sie das Radio ausschalten wird",
    clause("I", "listen to", "the teachers", **NO),
    "I do not listen to the teachers",
    "ich den Lehrern nicht zuhöre",
    be("she", "happy", **PAST),
    "she was happy",
    "sie glücklich war",
]

QUESTIONS = [
    clause("the children", "open", "the window"),
    "do the children open the window",
    "machen die Kinder das Fenster auf",
    clause("she", "go", "the forest", place="through:durch:acc:area", **PAST),
    "did she go through the forest",
    "ist sie durch den Wald gegangen",
    clause("you", "help", "me", tense="can"),
    "can you help me",
    "kannst du mir helfen",
    clause("he", "trust", "us", **NO),
    "does he not trust us",
    "vertraut er uns nicht",
    be("the soup", "fresh"),
    "is the soup fresh",
    "ist die Suppe frisch",
]


def gold(flat: list) -> list:
    return list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))


@pytest.mark.parametrize(
    ("said", "english", "german", "place"),
    [
        pytest.param(*row, place, id=row[2].replace(" ", "-"))
        for place, rows in [("second", STATEMENTS), ("last", VERB_LAST), ("first", QUESTIONS)]
        for row in gold(rows)
    ],
)
def test_gold(said, english, german, place):
    assert grammar.say_english(said, question=place == "first") == english
    assert grammar.say_german(said, place) == german


@pytest.mark.parametrize(
    ("said", "english", "german"),
    gold(
        [
            clause("she", "look for", "the man"),
            "whom does she look for",
            "wen sucht sie",
            clause("you", "answer", "the man", tense="should"),
            "whom should you answer",
            "wem solltest du antworten",
            clause("they", "give", "the child", "a book", **PAST),
            "what did they give the child",
            "was haben sie dem Kind gegeben",
        ]
    ),
)
def test_asking_for_the_object(said, english, german):
    asked = grammar.extract(said, grammar.asking(said.objects[-1][1]))
    assert grammar.say_english(asked, question=True) == english
    assert grammar.say_german(asked) == german


@pytest.mark.parametrize(
    ("head", "said", "english", "german"),
    [
        ("the man", ("she", "help"), "whom she helps", "dem sie hilft"),
        ("the women", ("she", "help"), "whom she helps", "denen sie hilft"),
        ("the boy", ("she", "call"), "whom she calls", "den sie anruft"),
        ("the door", ("she", "open"), "that she opens", "die sie aufmacht"),
    ],
)
def test_relative_clauses(head, said, english, german):
    inner = grammar.extract(clause(*said, head), grammar.relative_pronoun(phrase(head)))
    whole = grammar.with_relative(phrase(head), inner)
    main = be("I", "old")._replace(subject=whole)
    verb, ist = ("are", "sind") if whole.person == 3 else ("is", "ist")
    noun = phrase(head).nom.title()
    pair = grammar.sentence(grammar.say_english(main), grammar.say_german(main))
    expected = f"{head.capitalize()} {english} {verb} old.", f"{noun}, {german}, {ist} alt."
    assert pair == expected
