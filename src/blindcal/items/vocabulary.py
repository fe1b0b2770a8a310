"""The words that the built-in questions are made of, chosen so that every answer is beyond dispute."""

from __future__ import annotations

import calendar


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(" ".join(phrase.split()) for phrase in text.split("|"))


ALPHABET = "abcdefghijklmnopqrstuvwxyz"
MONTHS = tuple(calendar.month_name)[1:]
DAYS = tuple(calendar.day_name)

WORDS = _words(
    """
    anchor apple arrow autumn basket beach bird blanket book bottle branch bread bridge brother button
    candle carpet castle cat chair cheese cherry circle city cloud coffee copper corner cotton cousin
    daughter desert dinner doctor dog door dragon drum eagle earth elbow engine evening farmer feather
    fire fish flower forest fountain friend garden giraffe glass gold grape guitar hammer harbour hat
    hill honey horse hotel house iron island jacket jungle kettle king kitchen ladder lake lamp lemon
    letter lion maple market meadow mirror monkey moon morning mountain mouse music needle night
    notebook ocean office onion orange orchard oven owl paper parrot pencil pepper piano picture pillow
    planet plate pocket potato puzzle queen rabbit radio rain ribbon river road rocket roof rope saddle
    salt sand school shadow ship shirt silver sister snow spider spoon spring square star station stone
    street sugar summer table teacher thunder tiger tower train tree tunnel turtle umbrella uncle valley
    village violin wagon water whale wheel window winter wolf yellow zebra
    """
)

NAMES = _words(
    """
    Adam Alice Anna Ben Carla Clara David Diana Elias Emma Felix Fiona George Grace Hanna Hugo Ivan Iris
    Jack Julia Karl Kira Leo Lena Marco Maria Nina Noah Olga Oscar Paul Petra Rita Robert Sara Simon
    Tara Thomas Uma Victor Vera Walter Yara Zoe
    """
)

# No word belongs to two kinds, whoever is asked: no "orange", "tomato" or "chicken".
KINDS = {
    "animal": _words(
        "dog cat horse lion tiger rabbit monkey zebra giraffe wolf sheep goat pig bear fox camel"
    ),
    "fruit": _words("apple banana grape lemon cherry pear peach mango plum strawberry pineapple melon"),
    "vegetable": _words("carrot onion cabbage leek radish turnip parsnip potato beetroot"),
    "vehicle": _words("car bus train bicycle truck motorcycle tram van taxi ambulance tractor"),
    "tool": _words("hammer saw screwdriver shovel axe wrench rake chisel"),
    "musical instrument": _words("piano guitar violin flute trumpet cello harp clarinet saxophone"),
    "piece of clothing": _words("shirt jacket hat sock glove scarf skirt coat sweater"),
    "piece of furniture": _words("table chair sofa bed desk wardrobe bookshelf armchair"),
}
KIND_OF = {word: kind for kind, words in KINDS.items() for word in words}

# What one can own: none of these is part of another.
THINGS = (*KINDS["tool"], *KINDS["fruit"], *KINDS["vegetable"], *KINDS["piece of clothing"])

# Each is several times as big as the one before it, whichever specimen one has in mind.
BY_SIZE = (
    *("atom", "bacterium", "grain of sand", "ladybird", "walnut", "tennis ball", "cat", "sheep", "horse"),
    *("elephant", "tennis court", "village", "big city", "continent", "planet", "galaxy"),
)

FLYING = _words("eagle butterfly bee moth sparrow owl pigeon seagull mosquito parrot swan crow dragonfly")
GROUNDED = _words("dog horse elephant cow cat snake tortoise rabbit whale sheep lion pig goat")
FOOD = _words("bread cheese rice soup apples bananas carrots pasta cake chocolate potatoes cookies oranges")
NO_FOOD = _words(
    "stones cars chairs bricks hammers books houses shoes bottles candles computers tables pencils"
)
WISE = _phrases(
    """eat vegetables | sleep well | walk every day | drink water | wash your hands | eat fruit
    | get some exercise | brush your teeth | breathe fresh air | stop smoking | go to bed early"""
)
UNWISE = _phrases(
    """drink poison | smoke cigarettes | eat glass | drive when drunk | swallow nails | breathe smoke
    | touch a hot stove | drink petrol | stare into the sun | play with matches | skip sleep for days"""
)

# How a review speaks, well and ill; neutral words are left out.
REVIEWED = _words("film book hotel service music meal concert trip room restaurant show game")
PRAISE = _words("wonderful excellent great amazing fantastic perfect lovely superb")
BLAME = _words("terrible awful horrible dreadful bad poor disappointing unpleasant")
PLEASED = ("I loved it.", "I enjoyed it a lot.", "I will come again.")
DISPLEASED = ("I hated it.", "I was very unhappy.", "I will never come again.")
FINE = ("sunny and warm", "bright and clear", "mild and pleasant", "lovely", "beautiful")
FOUL = ("cold and rainy", "stormy", "foggy and wet", "awful", "grey and windy")

PLACES = _words("park school market station museum library hospital beach bakery theatre garden church")
OPENED = _words("museum library shop bakery theatre market restaurant zoo cinema castle gallery bank")
SUPPLIES = _words("milk bread butter sugar coffee tea rice cheese juice honey salt flour soup water")
STORES = ("in the kitchen", "in the fridge", "on the table", "in the shop", "in the bag", "at home")

# (what happened, what was done to ask about it): "bought a hat", "Did she buy a hat?"
DEEDS = (
    *(("bought", "buy"), ("found", "find"), ("lost", "lose"), ("sold", "sell"), ("painted", "paint")),
    *(("saw", "see"), ("wanted", "want"), ("borrowed", "borrow")),
)
MOVES = (("walked", "walk"), ("drove", "drive"), ("ran", "run"), ("cycled", "cycle"), ("went", "go"))

# (of a third person, of anyone)
HABITS = (
    *(("plays tennis", "play tennis"), ("speaks French", "speak French"), ("eats meat", "eat meat")),
    *(("drinks coffee", "drink coffee"), ("reads books", "read books"), ("watches films", "watch films")),
    *(("rides a bicycle", "ride a bicycle"), ("wears glasses", "wear glasses"), ("sings", "sing")),
)
TRAITS = (("likes music", "like music"), ("owns a car", "own a car"), ("lives alone", "live alone"))
MOODS = _words("tired hungry happy angry rich famous busy honest")

# (what came true, what did not, the question)
OUTCOMES = (
    ("{} agreed to help.", "{} refused to help.", "Did {} agree to help?"),
    ("{} accepted the invitation.", "{} declined the invitation.", "Did {} accept the invitation?"),
    ("{} passed the test.", "{} failed the test.", "Did {} pass the test?"),
    ("{} remembered the birthday.", "{} forgot the birthday.", "Did {} remember the birthday?"),
    ("{} arrived on time.", "{} arrived too late.", "Was {} on time?"),
    ("{} won the game.", "{} lost the game.", "Did {} win the game?"),
    ("{} told the truth.", "{} told a lie.", "Did {} tell the truth?"),
    ("Everyone likes {}.", "Nobody likes {}.", "Do people like {}?"),
    ("{}'s radio works well.", "{}'s radio is broken.", "Does {}'s radio work?"),
    ("{} is awake.", "{} is asleep.", "Is {} awake?"),
)
