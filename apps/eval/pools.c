/* Words and sentences for generated texts. */
#include "pools.h"

#include "answer.h"

const char *const eval_words[EVAL_N_WORDS] = {
    "amber",    "anchor",   "apple",   "april",    "arrow",   "autumn",  "bacon",   "badge",   "baker",    "banjo",   "barley",
    "basin",    "basket",   "beacon",  "beard",    "beaver",  "bench",   "berry",   "birch",   "biscuit",  "blanket", "blossom",
    "board",    "bonnet",   "border",  "bottle",   "bottom",  "branch",  "brass",   "bread",   "breeze",   "brick",   "broom",
    "bucket",   "buckle",   "bundle",  "butter",   "button",  "cabin",   "cable",   "camel",   "camera",   "candle",  "canvas",
    "carbon",   "carpet",   "carrot",  "castle",   "cattle",  "cedar",   "cellar",  "cement",  "chain",    "chair",   "chalk",
    "chapel",   "cheese",   "cherry",  "chest",    "cigar",   "circle",  "cloak",   "clock",   "cloth",    "cloud",   "clover",
    "coast",    "coffee",   "collar",  "colony",   "column",  "comet",   "copper",  "coral",   "corner",   "cotton",  "couch",
    "counter",  "cousin",   "cradle",  "crane",    "cream",   "creek",   "cricket", "crown",   "crystal",  "curtain", "cushion",
    "dagger",   "dairy",    "dance",   "danger",   "dawn",    "debate",  "desert",  "diamond", "dinner",   "doctor",  "dollar",
    "donkey",   "dragon",   "drawer",  "dream",    "dress",   "drum",    "dust",    "eagle",   "earth",    "easel",   "echo",
    "elbow",    "elder",    "engine",  "estate",   "evening", "fabric",  "falcon",  "farmer",  "feather",  "fence",   "ferry",
    "fiddle",   "field",    "finger",  "flame",    "flask",   "fleet",   "flock",   "flour",   "flower",   "flute",   "forest",
    "fork",     "fountain", "frame",   "friend",   "frost",   "fruit",   "funnel",  "galaxy",  "garden",   "garlic",  "gate",
    "ginger",   "glacier",  "glass",   "globe",    "glove",   "goblet",  "grain",   "grape",   "grass",    "gravel",  "guest",
    "guitar",   "hammer",   "harbor",  "harvest",  "hazel",   "hedge",   "helmet",  "hermit",  "hill",     "honey",   "hood",
    "horn",     "horse",    "hotel",   "house",    "hunter",  "iron",    "island",  "ivory",   "jacket",   "jasmine", "jelly",
    "jewel",    "journal",  "judge",   "jungle",   "kettle",  "kitchen", "kite",    "knight",  "ladder",   "lagoon",  "lamp",
    "lantern",  "lapel",    "laurel",  "leaf",     "leather", "lemon",   "letter",  "lily",    "linen",    "lion",    "lizard",
    "lobby",    "locket",   "lodge",   "lumber",   "magnet",  "mango",   "mantle",  "maple",   "marble",   "market",  "marsh",
    "mason",    "meadow",   "medal",   "melon",    "mercy",   "metal",   "mill",    "miner",   "mirror",   "mist",    "model",
    "monk",     "month",    "morning", "mortar",   "moss",    "motor",   "museum",  "music",   "napkin",   "needle",  "nest",
    "night",    "noodle",   "north",   "novel",    "nurse",   "ocean",   "olive",   "onion",   "orange",   "orbit",   "orchard",
    "organ",    "otter",    "oven",    "owner",    "oyster",  "painter", "palace",  "paper",   "parade",   "parcel",  "parrot",
    "pasture",  "patrol",   "pearl",   "pebble",   "pencil",  "pepper",  "piano",   "picture", "pigeon",   "pillow",  "pilot",
    "pine",     "planet",   "plate",   "plum",     "pocket",  "poem",    "poet",    "polish",  "pony",     "porch",   "potato",
    "powder",   "prince",   "prism",   "pulley",   "pumpkin", "purse",   "puzzle",  "quarry",  "quartz",   "quill",   "quiver",
    "rabbit",   "radish",   "railway", "ranch",    "raven",   "reed",    "ribbon",  "ridge",   "river",    "road",    "robin",
    "rocket",   "rope",     "rose",    "ruby",     "saddle",  "sailor",  "salad",   "salmon",  "sandal",   "satin",   "saucer",
    "scarf",    "school",   "scout",   "sculptor", "season",  "shadow",  "shelf",   "shell",   "shepherd", "shield",  "shore",
    "shovel",   "signal",   "silk",    "silver",   "singer",  "skirt",   "slate",   "sleeve",  "smoke",    "snow",    "soldier",
    "song",     "spark",    "sparrow", "spice",    "spider",  "spoon",   "spring",  "square",  "squash",   "stable",  "stamp",
    "star",     "station",  "statue",  "steel",    "stone",   "stool",   "storm",   "stove",   "straw",    "street",  "sugar",
    "summer",   "sunset",   "swan",    "sword",    "table",   "tailor",  "talon",   "target",  "teacher",  "temple",  "tent",
    "theater",  "thimble",  "thread",  "throne",   "thunder", "ticket",  "tiger",   "timber",  "tower",    "trail",   "train",
    "treasure", "tree",     "trumpet", "tulip",    "tunnel",  "turkey",  "turtle",  "vase",    "vessel",   "village", "vine",
    "violin",   "wagon",    "walnut",  "water",    "weaver",  "wheat",   "wheel",   "whistle", "willow",   "window",  "winter",
    "wolf",     "wonder",   "wool",    "yarn",
};

const char *const eval_place_names[EVAL_N_PLACE_NAMES] = {
    "harrowmere", "castellane",  "brindlewick", "oakenshade",   "merrowdale", "tamsinfell", "pellworth",   "quarrelstone",
    "sunderby",   "ivoryhollow", "larkspire",   "winterbourne", "dunmarrow",  "ashgrove",   "thistledown", "copperlea",
    "ravensgate", "millbrook",   "foxhaven",    "stonewater",   "elmsbury",   "greywater",  "marlowe",     "fenwick",
    "northolt",   "saltmarsh",   "hazelbank",   "kingsferry",   "lowmoor",    "westerly",   "briarcliff",  "ottersford",
};

/* A place's description before its name, and the later one that asks for it. */
const char *const eval_places[EVAL_N_PLACES][2] = {
    {"The old map marked a harbour where the ships lay in two rows under a lamp that never went out. Sailors who slept "
     "there called the harbour",
     "Years later he asked a sailor about the harbour with two rows of ships and a lamp that never went out, and was "
     "told its name"},
    {"Behind the third hill there was a town whose houses were all painted blue and whose streets ran in circles. On "
     "the gate was written the name of the town",
     "She could still see the blue houses and the streets that ran in circles, and when they asked her which town it "
     "was, she said"},
    {"They came at dusk to a mill that stood on the bank of a frozen river, with a wheel of black oak. The miller's "
     "people call this mill",
     "In the letter he described the black oak wheel and the frozen river, and gave the mill its name"},
    {"High above the valley lies a monastery that can only be reached by a ladder of rope. Its monks have always "
     "called it",
     "The traveller remembered the ladder of rope and the monks above the valley, and the place they lived in"},
    {"In the middle of the marsh there is a small island with a single tree full of crows. The herdsmen know the "
     "island as",
     "Nobody had forgotten the single tree full of crows in the marsh, nor what the herdsmen called the island"},
    {"At the end of the railway was a station with a glass roof and a clock that showed the wrong hour. The board over "
     "the door named the station",
     "The wrong clock and the glass roof at the end of the railway came back to him, and so did the name on the board"},
    {"Between two rivers grows an orchard whose apples are as white as milk. The people who tend it call the orchard",
     "White apples grow between the two rivers, and when the merchant asked for the orchard they told him to look for"},
    {"Deep in the forest stood a tower without any windows, covered with red ivy. In the old songs the tower is called",
     "The song about the tower without windows and its red ivy ends with the name"},
    {"On the cliff there was an inn where travellers paid with stories instead of money. The sign over the door said",
     "He had paid with a story at the inn on the cliff, and the sign over its door said"},
    {"Under the city ran a canal that was lit by green lanterns all the year. The boatmen's name for the canal was",
     "Green lanterns lit the water under the city, and the boatmen told her that this canal was"},
    {"Far in the south a market is held on the backs of camels, once in seven years. Merchants speak of that market as",
     "Once in seven years the camels carry the market again, and the merchants all speak of"},
    {"Beyond the pass they found a lake so still that birds flew into its sky. The guide told them that the lake was",
     "The lake so still that birds flew into its sky was on no map, but the guide had told them that it was"},
};

const char *const eval_thoughts[EVAL_N_THOUGHTS] = {
    "It is hard to say whether a promise made to oneself binds more tightly than one made to a friend",
    "A man who has everything he wants may have wanted too little, or asked himself too seldom",
    "Some hold that nothing is ever truly forgotten, and that memory only changes its clothes",
    "To know what one does not know is called the beginning of wisdom, though few people begin there",
    "If time were a river, we would be the stones in it and not the boats",
    "Whoever says that beauty lies in the eye has not asked what lies behind the eye",
    "Freedom without a task grows heavy, and a task without freedom grows heavier still",
    "Perhaps we do not choose our beliefs at all, but only the reasons we give for them",
    "A question well put is worth more than an answer that was put in haste",
    "The same sea looks calm to those on the shore and wild to those in the boat",
    "They argued whether a ship whose every plank has been replaced can still be the ship that set out",
    "What is good for the hive is not always good for the bee, and the bee is seldom asked",
};

const char *const eval_foods[EVAL_N_FOODS] = {
    "The soup was thick with barley and leeks, and a spoon of cream had been stirred in at the last moment",
    "For supper there was trout fried in butter with almonds, and a dish of young potatoes beside it",
    "She kneaded the dough twice, let it rest under a cloth, and baked it until the crust sang",
    "The stew had simmered since the morning with plums, onions and a stick of cinnamon",
    "He cut the pears thin, laid them on the pastry like tiles and poured honey over them",
    "The rice was yellow with saffron and hid small pieces of lamb and apricot",
    "A salad of beets and walnuts came first, sharp with vinegar and sweet at the end",
    "The cook grilled the peppers until their skins were black and served them with goat cheese",
    "They drank mint tea with so much sugar that the spoon almost stood in it",
    "Mushrooms were roasted on the coals with nothing but salt, and nobody wanted anything else",
    "The pie was filled with rabbit and carrots, and its lid was golden from the egg",
    "On the table stood a bowl of figs, a loaf of dark bread and a piece of old cheese",
};

const char *const eval_sums[EVAL_N_SUMS] = {
    "A baker has 48 rolls, sells 19 before noon and bakes 12 more, so that he ends with 41",
    "If each of 7 boxes holds 13 nails, there are 91 nails, and 9 are bent, which leaves 82",
    "Three trains carry 120, 85 and 40 passengers, which makes 245 in all",
    "A rope of 60 feet is cut into 5 equal pieces, and each of them measures 12 feet",
    "She walks 4 miles an hour for 3 hours and rests, so she has gone 12 miles",
    "Half of 90 is 45, and if one takes 17 away, 28 remain",
    "A farmer with 36 hens buys 15 and loses 8 to the fox, and then has 43",
    "The square of 14 is 196, and adding 4 to it gives 200",
    "If 9 friends share 72 coins evenly, each of them goes home with 8",
    "Two numbers add up to 50 and one is 22, so the other must be 28",
    "A tank of 200 litres loses 6 litres an hour, and after 10 hours holds 140",
    "Five books at 11 coins each cost 55 coins, and from 60 one gets 5 back",
};
