package main

import "time"

// lockCases are about locks, and about calls in general.
var lockCases = map[string]checkCase{
	"a lock is taken and released": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(20).logs("DEL Lock:n").
		recorded(held("a", "T", 9, 11, 19, 0)), ""},
	"one after the other": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(20).logs("DEL Lock:n").at(30).logs("SET Lock:n U PXAT @130").at(40).logs("DEL Lock:n").
		recorded(held("a", "T", 9, 11, 19, 5)).recorded(held("b", "U", 9, 31, 39, 6)), ""},
	"a held key gets another token": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(20).logs("SET Lock:n U PXAT @130").recorded(held("a", "T", 9, 12, 15, 0)), "given to another token"},
	"a lost acquisition is replaced": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(20).logs("SET Lock:n U PXAT @130").at(30).logs("DEL Lock:n").recorded(held("a", "U", 9, 21, 29, 0)), ""},
	"two hold a lock": {newScenario().
		recorded(record{Op: opHold, Name: "n", Call: 1, From: 10, Until: 20, Unlock: 20, Return: 21, Result: done}).
		recorded(record{Process: "b", Op: opHold, Name: "n", Call: 1, From: 15, Until: 30, Unlock: 30, Return: 31, Result: done}), "two held n"},
	"two hold a lock, by porcupine": {newScenario().
		recorded(record{Op: opHold, Name: "n", Call: 1, From: 10, Until: 20, Unlock: 20, Return: 21, Result: done}).
		recorded(record{Process: "b", Op: opHold, Name: "n", Call: 1, From: 15, Until: 30, Unlock: 30, Return: 31, Result: done}), "not those of a lock"},
	"a belief after the release": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(20).logs("DEL Lock:n").
		recorded(held("a", "T", 9, 11, 30, 0)), "the log says"},
	"a belief after the expiry": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(200).logs("DEL Lock:n").
		recorded(held("a", "T", 9, 11, 120, 0)), "the log says"},
	"a belief that was extended": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(60).logs("PEXPIREAT Lock:n @160").at(130).logs("DEL Lock:n").
		recorded(held("a", "T", 9, 11, 129, 0)), ""},
	"released in the last millisecond": {newScenario().halfAhead().
		at(10).logs("SET Lock:n T PXAT @110").at(110).logs("DEL Lock:n").recorded(unlockedAfter(0, held("a", "T", 9, 11, 109, 0))), ""},
	"released after the last millisecond": {newScenario().halfAhead().
		at(10).logs("SET Lock:n T PXAT @110").at(110).logs("DEL Lock:n").recorded(unlockedAfter(1, held("a", "T", 9, 11, 109, 0))), "and Unlock returned nil"},
	"a belief without a key": {newScenario().recorded(held("a", "T", 9, 11, 12, 0)), "the log says"},
	"a belief before the key": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(20).logs("DEL Lock:n").
		recorded(held("a", "T", 1, 5, 19, 0)), "the log says"},
	"the clock is set ahead": {newScenario().
		at(10).logs("SET Lock:n T PXAT @1100").at(15).jump(time.Hour).at(16).logs("DEL Lock:n").at(17).logs("SET Lock:n U PXAT @3601100").
		at(40).logs("DEL Lock:n").
		recorded(heldFor(1000, held("a", "T", 9, 11, 100, 0))).recorded(held("b", "U", 9, 18, 39, 0)), ""},
	"the clock is set ahead, and the holder does not notice in time": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(15).jump(time.Hour).at(16).logs("DEL Lock:n").
		recorded(heldFor(100, held("a", "T", 9, 11, 400, 0))), "the log says"},
	"the clock is set back": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(15).jump(-time.Hour).at(300).logs("DEL Lock:n").
		recorded(held("a", "T", 9, 11, 299, 0)), ""},
	"the clock is set back, perhaps just before the key expires": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(300).logs("DEL Lock:n").aboutThen(100, 120, -time.Hour).
		recorded(held("a", "T", 9, 11, 299, 0)), ""},
	"data is lost": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(20).lost(0).at(40).logs("SET Lock:n U PXAT @140").at(50).logs("DEL Lock:n").
		recorded(heldFor(100, held("a", "T", 9, 11, 100, 0))).recorded(held("b", "U", 9, 41, 49, 0)), ""},
	"an extension is lost, and made again": {newScenario().
		at(10).logs("SET Lock:n T PXAT @300").at(15).logs("PEXPIREAT Lock:n @400").at(20).lost(1).at(40).logs("PEXPIREAT Lock:n @700").
		at(690).logs("DEL Lock:n").recorded(heldFor(300, held("a", "T", 9, 11, 689, 0))), ""},
	"data is lost, except this": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(11).logs("SET Lock:m V PXAT @110").at(20).lost(1).at(30).logs("SET Lock:n U PXAT @140").
		recorded(held("a", "T", 9, 11, 25, 0)), "given to another token"},
	"a fence of a lock that was handed over when the clock had ended it": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(15).jump(time.Hour).at(16).logs("DEL Lock:n; SET Lock:n U PXAT @3600116").at(30).logs("DEL Lock:n").
		recorded(heldFor(100, held("a", "U", 14, 17, 25, 8))).recorded(heldFor(100, held("b", "T", 18, 19, 20, 7))), ""},
	"a fence of a lock that was taken when the clock had been set": {newScenario().
		at(10).logs("SET Lock:n U PXAT @110").at(15).jump(time.Hour).at(16).logs("DEL Lock:n; SET Lock:n T PXAT @3600116").at(30).logs("DEL Lock:n").
		recorded(heldFor(100, held("a", "U", 9, 11, 12, 8))).recorded(heldFor(100, held("b", "T", 18, 19, 20, 7))), "fence 8"},
	"fences that fall": {newScenario().
		recorded(held("a", "T", 1, 2, 3, 8)).recorded(held("b", "U", 5, 6, 7, 7)), "fence 8"},
	"a fence twice": {newScenario().
		recorded(held("a", "T", 1, 2, 3, 8)).recorded(held("b", "U", 1, 6, 7, 8)), "fence 8"},
	"a lost fence, the clock behind": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110; SET {Lock:n}:fence 1700003600000000 PXAT @900").at(12).logs("DEL Lock:n").at(20).lost(0).
		at(31).jump(-2 * time.Hour).
		at(40).logs("SET Lock:n U PXAT @-7199000; SET {Lock:n}:fence 1700000000000000 PXAT @900").at(42).logs("DEL Lock:n").
		recorded(held("a", "T", 9, 11, 12, 1_700_003_600_000_000)).recorded(held("b", "U", 39, 41, 42, 1_699_992_800_000_000)), ""},
	"a lost fence, the clock right": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110; SET {Lock:n}:fence 9 PXAT @900").at(12).logs("DEL Lock:n").at(20).lost(0).
		at(40).logs("SET Lock:n U PXAT @140; SET {Lock:n}:fence 5 PXAT @900").at(42).logs("DEL Lock:n").
		recorded(held("a", "T", 9, 11, 12, 9)).recorded(held("b", "U", 39, 41, 42, 5)), "fence 9"},
	"a stale write is accepted": {newScenario().
		recorded(record{Op: opRegister, Name: "n", Fence: 8, Call: 1, Return: 2, Result: done}).
		recorded(record{Op: opRegister, Name: "n", Fence: 7, Call: 3, Return: 4, Result: done}), "was accepted after"},
	"a stale write is refused": {newScenario().
		recorded(record{Op: opRegister, Name: "n", Fence: 7, Call: 3, Return: 4, Result: refused}), ""},
	"a holder's write is refused": {newScenario().
		recorded(record{Op: opRegister, Name: "n", Fence: 7, Call: 3, Return: 4, From: 3, Until: 4, Result: refused}), "holder's write"},
	"a holder's write is refused, and a higher fence was written": {newScenario().
		recorded(record{Op: opRegister, Name: "n", Fence: 8, Call: 1, Return: 2, Result: done}).
		recorded(record{Op: opRegister, Name: "n", Fence: 7, Call: 3, Return: 4, From: 3, Until: 4, Result: refused}), "holder's write"},
	"a holder's write is refused, as a fence was lost": {newScenario().
		at(1).logs("SET {Lock:n}:fence 1700003600000000 PXAT @900").at(2).lost(0).at(3).jump(-2 * time.Hour).
		recorded(record{Op: opRegister, Name: "n", Fence: 1_700_003_600_000_000, Call: 1, Return: 2, Result: done}).
		recorded(record{Op: opRegister, Name: "n", Fence: 7, Call: 30, Return: 40, From: 30, Until: 40, Result: refused}), ""},
	"an Unlock that released nothing": {newScenario().
		at(10).logs("SET Lock:n T PXAT @30").at(31).logs("DEL Lock:n").
		recorded(record{Op: opHold, Name: "n", Token: digest("T"), Call: 9, Got: 11, From: 11, Until: 20, Unlock: 50, Return: 51, Result: done}), "and Unlock returned nil"},
	"a DoAll whose release has had no answer": {newScenario().
		at(10).logs("SET Lock:n T PXAT @300").at(100).logs("DEL Lock:n").
		recorded(record{Op: opHold, Name: "n", Token: digest("T"), Call: 9, Got: 11, From: 11, Until: 20, Unlock: 20, Return: 21, Result: done, Section: true}), ""},
	"a DoAll that held nothing at its end": {newScenario().
		at(10).logs("SET Lock:n T PXAT @300").at(15).logs("DEL Lock:n").
		recorded(record{Op: opHold, Name: "n", Token: digest("T"), Call: 9, Got: 11, From: 11, Until: 12, Unlock: 50, Return: 51, Result: done, Section: true}), "and Unlock returned nil"},
	"extended after its end, since the clock was set back": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(115).jump(-time.Hour).at(120).logs("PEXPIREAT Lock:n @110").at(140).logs("DEL Lock:n").
		recorded(record{Op: opHold, Name: "n", Token: digest("T"), Call: 100, Got: 125, From: 125, Until: 130, Unlock: 130, Return: 145, Result: done}), ""},
	"believed after its end, since the clock was set back": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(115).jump(-time.Hour).at(140).logs("DEL Lock:n").
		recorded(record{Op: opHold, Name: "n", Token: digest("T"), Call: 100, Got: 125, From: 125, Until: 130, Unlock: 130, Return: 145, Result: done}), ""},
	"believed after its end, and the clock was set back later": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(135).jump(-10 * ms).at(140).logs("DEL Lock:n").
		recorded(record{Op: opHold, Name: "n", Token: digest("T"), Call: 100, Got: 125, From: 125, Until: 130, Unlock: 130, Return: 145, Result: done}), "held n from"},
	"the clock is set ahead, and an extension after that is lost without a trace": {newScenario().
		at(8).jump(time.Hour).at(10).logs("SET Lock:n T PXAT @3600110").at(60).logs("PEXPIREAT Lock:n @3600160").at(100).forgets(200).
		at(300).logs("DEL Lock:n").recorded(heldFor(100, held("a", "T", 9, 11, 230, 0))), ""},
	"the clock is set ahead, an extension after that is lost without a trace, and the holder does not notice in time": {newScenario().
		at(8).jump(time.Hour).at(10).logs("SET Lock:n T PXAT @3600110").at(60).logs("PEXPIREAT Lock:n @3600160").at(100).forgets(200).
		at(300).logs("DEL Lock:n").recorded(heldFor(100, held("a", "T", 9, 11, 430, 0))), "the log says"},
	"taken again after it was lost, and struck again": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(20).lost(0).at(150).logs("SET Lock:n T PXAT @250").at(160).jump(time.Hour).at(165).logs("DEL Lock:n").
		recorded(record{Op: opHold, Name: "n", Token: digest("T"), TTL: 100 * ms, Call: 9, Got: 152, From: 152, Until: 200, Unlock: 200, Return: 201, Result: notHeld}), ""},
	"taken again after it was lost, and that was lost too": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(20).lost(0).at(300).forgets(400).
		recorded(record{Op: opHold, Name: "n", Token: digest("T"), TTL: 100 * ms, Call: 9, Got: 350, From: 350, Until: 360, Unlock: 360, Return: 390, Result: unknown}), ""},
	"believed for longer than it can have been": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(20).lost(0).at(150).logs("SET Lock:n T PXAT @250").at(160).jump(time.Hour).at(165).logs("DEL Lock:n").
		recorded(record{Op: opHold, Name: "n", Token: digest("T"), TTL: 100 * ms, Call: 9, Got: 152, From: 152, Until: 400, Unlock: 400, Return: 401, Result: notHeld}), "held n from"},
	"handed over to a LockAll that failed later": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(100).logs("DEL Lock:n").recorded(held("a", "T", 9, 11, 20, 0)).
		recorded(record{Process: "a", Op: opTakeSet, Name: "n", Call: 15, Return: 101, Result: waited, Set: true}), ""},
	"an Unlock that left the key": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(111).logs("DEL Lock:n").
		recorded(held("a", "T", 9, 11, 20, 0)), "and Unlock returned nil"},
	"an extension that was not": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").
		recorded(record{Op: opExtendLock, Name: "n", Token: digest("T"), TTL: 100 * ms, Call: 50, Return: 51, Result: done}), "which the log does not show"},
	"held again": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(90).logs("DEL Lock:n").
		recorded(record{Op: opHold, Name: "n", Token: digest("T"), Call: 9, Got: 11, From: 11, Until: 60, Return: 50, Result: expired}), "held n again"},
	"a long wait for a free lock": {lasting(20_000).
		at(10).logs("SET Lock:n T PXAT @110").at(111).logs("DEL Lock:n").
		recorded(record{Op: opTake, Name: "n", Call: 50, Return: 9000, Result: ctxEnded}), "and no token held it in"},
	"a wait for a server that was silent": {lasting(10000).at(40).ticks().at(3000).ticks().
		recorded(record{Op: opTake, Name: "n", Call: 50, Return: 9000, Result: ctxEnded}), ""},
	"a wait for a server that was silent for a moment": {lasting(10000).at(40).ticks().at(600).ticks().
		recorded(record{Op: opTake, Name: "n", Call: 50, Return: 9000, Result: ctxEnded}), "and no token held it in"},
	"a long wait for a held lock": {lasting(20_000).
		at(10).logs("SET Lock:n T PXAT @8000").at(7000).logs("DEL Lock:n").at(8000).logs("SET Lock:n U PXAT @9000").at(8900).logs("DEL Lock:n").
		recorded(record{Op: opTake, Name: "n", Call: 50, Return: 15_000, Result: ctxEnded}), ""},
	"a long wait for a reservation that the clock, set back, puts off": {lasting(20_000).
		at(40).logs("SET Lock:n >ABCDEFGHIJKL:7:100 PXAT @140").at(60).jump(-time.Hour).at(15_000).logs("SET Lock:n T PXAT @-3584000").
		recorded(record{Op: opTake, Name: "n", Call: 50, Return: 15_001, Result: ctxEnded}), ""},
	"a long wait for a lock that was reserved": {lasting(20_000).
		at(40).logs("SET Lock:n >ABCDEFGHIJKL:7:100 PXAT @140").at(150).logs("DEL Lock:n").at(200).jump(-time.Hour).
		recorded(record{Op: opTake, Name: "n", Call: 50, Return: 15_001, Result: ctxEnded}), "and no token held it in"},
	"a long wait after a reservation that the clock, set back, puts off": {lasting(40_000).
		at(40).logs("SET Lock:n >ABCDEFGHIJKL:7:100 PXAT @140").at(60).jump(-time.Hour).at(15_000).logs("SET Lock:n T PXAT @-3584900").
		at(15_010).logs("DEL Lock:n").
		recorded(record{Op: opTake, Name: "n", Call: 50, Return: 30_000, Result: ctxEnded}), "and no token held it in"},
	"ErrLocked of a free lock": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(11).logs("DEL Lock:n").
		recorded(record{Op: opTake, Name: "n", Call: 500, Return: 510, Result: locked}), "and no token held it"},
	"ErrLocked behind a caller that asks": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(11).logs("DEL Lock:n").
		recorded(record{Op: opTake, Name: "n", Call: 490, Return: 600, Result: ctxEnded}).
		recorded(record{Op: opTake, Name: "n", Call: 500, Return: 510, Result: locked}), ""},
	"ErrLocked behind a caller that was refused for no reason": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(11).logs("DEL Lock:n").
		recorded(record{Op: opTake, Name: "n", Call: 490, Return: 600, Result: locked}).
		recorded(record{Op: opTake, Name: "n", Call: 500, Return: 510, Result: locked}), "and no token held it"},
	"ErrLocked behind a caller that is refused for a hold that begins later": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(11).logs("DEL Lock:n").at(900).logs("SET Lock:n U PXAT @1900").at(950).logs("DEL Lock:n").
		recorded(record{Op: opTake, Name: "n", Call: 500, Return: 980, Result: locked}).
		recorded(record{Op: opTake, Name: "n", Call: 510, Return: 511, Result: locked}), ""},
	"ErrLocked after a caller that asked": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(11).logs("DEL Lock:n").
		recorded(record{Op: opTake, Name: "n", Call: 490, Return: 495, Result: ctxEnded}).
		recorded(record{Op: opTake, Name: "n", Call: 500, Return: 510, Result: locked}), "and no token held it"},
	"ErrLocked of a reserved lock": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(100).logs("SET Lock:n >ABCDEFGHIJKL:7:400 PXAT @500").
		recorded(record{Op: opTake, Name: "n", Call: 450, Return: 460, Result: locked}), ""},
	"ErrLocked after a reservation": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(100).logs("SET Lock:n >ABCDEFGHIJKL:7:400 PXAT @500").
		recorded(record{Op: opTake, Name: "n", Call: 1450, Return: 1460, Result: locked}), "and no token held it"},
	"ErrLocked of a reservation that the clock, set back, puts off over a restart": {lasting(20_000).
		at(40).logs("SET Lock:n >ABCDEFGHIJKL:7:100 PXAT @140").at(60).jump(-time.Hour).at(100).lost(1).at(9000).logs("SET Lock:m T PXAT @-3590900").
		recorded(record{Op: opTake, Name: "n", Call: 5000, Return: 5010, Result: locked}), ""},
	"ErrLocked of a reservation that a restart has lost": {lasting(20_000).
		at(40).logs("SET Lock:n >ABCDEFGHIJKL:7:100 PXAT @140").at(60).jump(-time.Hour).at(100).lost(0).at(9000).logs("SET Lock:m T PXAT @-3590900").
		recorded(record{Op: opTake, Name: "n", Call: 5000, Return: 5010, Result: locked}), "and no token held it"},
	"ErrLocked of a reservation that is back after a restart": {lasting(20_000).
		at(40).logs("SET Lock:n >ABCDEFGHIJKL:7:100 PXAT @140").at(60).jump(-time.Hour).at(80).logs("DEL Lock:n").at(100).lost(1).
		at(9000).logs("SET Lock:m T PXAT @-3590900").
		recorded(record{Op: opTake, Name: "n", Call: 5000, Return: 5010, Result: locked}), ""},
	"an operation that never returned": {newScenario().
		recorded(record{Op: opTake, Name: "n", Call: 500}), "never returned"},
	"late": {newScenario().
		recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "v", Call: 1, Limit: 2, Return: 2000, Result: unknown}), "after its context had ended"},
	"late, as the process did not run": {newScenario().
		recorded(record{Op: opStall, Call: 10, Return: 1990, Result: done}).
		recorded(record{Op: opEnqueue, Name: loopQueue, ID: "t", Version: "v", Call: 1, Limit: 2, Return: 2000, Result: unknown}), ""},
	"three permits, and another when one has ended": {newScenario().
		at(10).logs("ZADD Lock:gate -3 '' @110 T; PEXPIREAT Lock:gate @110").at(11).logs("ZADD Lock:gate -3 '' @50 U").at(12).logs("ZADD Lock:gate -3 '' @110 V").
		at(60).logs("ZADD Lock:gate -3 '' @160 W; PEXPIREAT Lock:gate @160; ZREMRANGEBYSCORE Lock:gate 0 @60").
		at(90).logs("ZREM Lock:gate T").at(91).logs("ZREM Lock:gate V").at(92).logs("DEL Lock:gate").
		recorded(permit("a", "T", 9, 12, 89)).recorded(permit("a", "V", 9, 14, 90)).recorded(permit("b", "W", 9, 62, 91)), ""},
	"a fourth permit": {newScenario().
		at(10).logs("ZADD Lock:gate -3 '' @110 T").at(11).logs("ZADD Lock:gate -3 '' @110 U").at(12).logs("ZADD Lock:gate -3 '' @110 V").
		at(60).logs("ZADD Lock:gate -3 '' @160 W").at(90).logs("DEL Lock:gate"), "4 held gate"},
	"a fourth, when one was extended": {newScenario().
		at(10).logs("ZADD Lock:gate -3 '' @110 T").at(11).logs("ZADD Lock:gate -3 '' @50 U").at(12).logs("ZADD Lock:gate -3 '' @110 V").
		at(30).logs("ZADD Lock:gate @130 U").at(60).logs("ZADD Lock:gate -3 '' @160 W").at(90).logs("DEL Lock:gate"), "4 held gate"},
	"four believe in a permit": {newScenario().
		recorded(withToken(0, permit("a", "T", 9, 12, 89))).recorded(withToken(0, permit("b", "U", 9, 12, 89))).
		recorded(withToken(0, permit("c", "V", 9, 12, 89))).recorded(withToken(0, permit("d", "W", 9, 80, 91))), "4 held gate"},
	"a permit believed in after its end": {newScenario().
		at(10).logs("ZADD Lock:gate -3 '' @110 T; PEXPIREAT Lock:gate @110").at(130).logs("DEL Lock:gate").
		recorded(permit("a", "T", 9, 12, 120)), "the log says"},
	"data is lost, with a permit": {newScenario().
		at(10).logs("ZADD Lock:gate -3 '' @110 T").at(11).logs("ZADD Lock:gate -3 '' @110 U").at(12).logs("ZADD Lock:gate -3 '' @110 V").at(20).lost(2).
		at(40).logs("ZADD Lock:gate -3 '' @140 W").at(50).logs("DEL Lock:gate").
		recorded(heldFor(100, permit("a", "V", 9, 13, 100))).recorded(permit("b", "W", 39, 41, 49)), ""},
	"a lock of another client, adopted": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(30).logs("PEXPIREAT Lock:n @130").at(60).logs("DEL Lock:n").
		recorded(withResult(detached, held("a", "T", 9, 11, 20, 5))).recorded(held("b", "T", 29, 31, 59, 6)), ""},
	"a lock that was adopted while its holder believed in it": {newScenario().
		at(10).logs("SET Lock:n T PXAT @110").at(30).logs("PEXPIREAT Lock:n @130").at(60).logs("DEL Lock:n").
		recorded(withResult(detached, held("a", "T", 9, 11, 40, 5))).recorded(held("b", "T", 29, 31, 59, 6)), "two held n"},
	"a set waits for one while others are free": {lasting(20_000).
		recorded(record{Op: opTakeSet, Set: true, Name: "n", Call: 50, Return: 9000, Result: ctxEnded}), ""},
	"stuck": {newScenario().recorded(record{Op: opStuck, Name: "2 goroutines", Call: 1, Return: 2, Result: refused}), "stuck: 2 goroutines"},
}
