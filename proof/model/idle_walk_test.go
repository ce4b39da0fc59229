package model_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/proof/model"
)

// idleWalk returns w with a look interval of two ticks, in which whatever is struck by a fault is
// over, and tasks that are due one tick later, unless it has others.
func idleWalk(w model.IdleWalk) model.IdleWalk {
	if w.Look == 0 {
		w.Look = 2
	}
	if w.Later == 0 {
		w.Later = 1
	}
	w.Bound = w.Look
	return w
}

type idleWalkTest struct {
	name string
	walk model.IdleWalk
	full bool
}

const idleDeaths = model.IdleDeath | model.IdleHalfOpen

var idleWalksWithoutFaults = []idleWalkTest{
	{"two tasks", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2}, false},
	{"three tasks", model.IdleWalk{Clients: 2, Calls: 3, Adds: 3, Batch: true}, true},
	{"three tasks, four calls", model.IdleWalk{Clients: 2, Calls: 4, Adds: 3, Batch: true}, true},
	{"three clients", model.IdleWalk{Clients: 3, Calls: 3, Adds: 1}, false},
	{"tasks that are due much later", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Later: 3}, false},
	{"a task that is never due", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Later: model.NotDueYet}, false},
	{"a task that is never due, three clients", model.IdleWalk{Clients: 3, Calls: 3, Adds: 1, Later: model.NotDueYet}, true},
	{"leases end", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Later: 2, Lease: 2}, false},
	{"a head is cancelled", model.IdleWalk{Clients: 2, Calls: 2, Adds: 2, Cancels: 1}, false},
	{"a head is cancelled, three calls", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Cancels: 1}, true},
	{"callers give up", model.IdleWalk{Clients: 2, Calls: 3, Adds: 1, GiveUps: true, Directly: true}, false},
	{"callers give up, two tasks", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, GiveUps: true, Directly: true}, true},
	{"a caller has room", model.IdleWalk{Clients: 2, Calls: 2, Adds: 2, Room: true}, false},
	{"a caller has room, three calls", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Room: true}, true},
	{"callers have room, three tasks", model.IdleWalk{Clients: 2, Calls: 3, Adds: 3, Room: true}, true},
	{"callers have room and claim directly", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Room: true, Directly: true}, true},
	{"callers have room and give up", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Later: 2, Room: true, GiveUps: true}, true},
	{"callers have room, three clients", model.IdleWalk{Clients: 3, Calls: 3, Adds: 1, Room: true}, true},
	{"a short watch", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Look: 3, Later: 3, Told: 1}, false},
	{"a short watch, three clients", model.IdleWalk{Clients: 3, Calls: 3, Adds: 1, Look: 3, Later: 3, Told: 1}, true},
	{"looks at several queues", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Together: true}, false},
	{"looks at several queues, callers give up", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Together: true, GiveUps: true}, true},
}

var idleWalksWithFaults = []idleWalkTest{
	{"a foreign producer", model.IdleWalk{Clients: 2, Calls: 3, Adds: 1, Foreign: 1}, false},
	{"a foreign producer, two tasks", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Foreign: 1}, true},
	{"a message is lost", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Faults: 1, Kinds: model.IdleMessageLost}, false},
	{"every message is lost", model.IdleWalk{Clients: 2, Calls: 2, Adds: 2, Faults: 7, Kinds: model.IdleMessageLost}, false},
	{"a client dies", model.IdleWalk{Clients: 2, Calls: 2, Adds: 2, Faults: 1, Kinds: idleDeaths}, false},
	{"one of three dies", model.IdleWalk{Clients: 3, Calls: 3, Adds: 1, Faults: 1, Kinds: model.IdleHalfOpen}, true},
	{"two of three die", model.IdleWalk{Clients: 3, Calls: 3, Adds: 1, Faults: 2, Kinds: model.IdleHalfOpen}, true},
	{"the line is lost, or PUBLISH denied", model.IdleWalk{Clients: 2, Calls: 2, Adds: 2, Faults: 1, Kinds: model.IdleLineLost | model.IdleDenied}, false},
	{"any two faults", model.IdleWalk{Clients: 2, Calls: 2, Adds: 1, Faults: 2, Kinds: model.AnyIdleFault}, false},
	{"any fault, looks at several queues", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Together: true, Faults: 1, Kinds: model.AnyIdleFault}, true},
	{"any fault, a task that is never due", model.IdleWalk{Clients: 2, Calls: 3, Adds: 1, Later: model.NotDueYet, Together: true, Faults: 1, Kinds: model.AnyIdleFault}, false},
	{"an order is mistaken, a task that is never due", model.IdleWalk{Clients: 2, Calls: 3, Adds: 1, Later: model.NotDueYet, Together: true, Races: 1}, false},
	{"an order is mistaken", model.IdleWalk{Clients: 2, Calls: 2, Adds: 2, Races: 1}, false},
	{"orders are mistaken, callers give up", model.IdleWalk{Clients: 2, Calls: 3, Adds: 1, Races: 2, GiveUps: true, Directly: true}, true},
}

var idleWalksWithLimits = []idleWalkTest{
	{"one is leased at a time", model.IdleWalk{Clients: 2, Calls: 3, Adds: 3, Limits: model.IdleLimits{Running: 1}}, false},
	{"two are leased at a time", model.IdleWalk{Clients: 2, Calls: 4, Adds: 3, Directly: true, Limits: model.IdleLimits{Running: 2}}, true},
	{"a claim finishes a task of a full queue", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Directly: true, Later: 2, Look: 3, Limits: model.IdleLimits{Running: 1}}, false},
	{"a claim finishes a task of a full queue, three tasks", model.IdleWalk{Clients: 2, Calls: 4, Adds: 3, Directly: true, Later: 2, Look: 3, Limits: model.IdleLimits{Running: 1}}, true},
	{"one is leased at a time, leases end", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Lease: 2, Limits: model.IdleLimits{Running: 1}}, false},
	{"one is leased at a time, a head is cancelled", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Cancels: 1, Lease: 3, Look: 3, Limits: model.IdleLimits{Running: 1}}, false},
	{"one is leased at a time, callers give up", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, GiveUps: true, Directly: true, Limits: model.IdleLimits{Running: 1}}, true},
	{"one is leased at a time, callers have room", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Room: true, Lease: 3, Look: 3, Limits: model.IdleLimits{Running: 1}}, true},
	{"one is leased at a time, limits change", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Limits: model.IdleLimits{Running: 1, Changes: 2}}, true},
	{"one is handed out in a tick", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Limits: model.IdleLimits{Every: 1}}, false},
	{"one is handed out in two ticks, callers give up", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, GiveUps: true, Directly: true, Limits: model.IdleLimits{Every: 2}}, true},
	{"one is handed out in three ticks, limits change", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Limits: model.IdleLimits{Every: 3, Changes: 1}}, false},
	{"one is handed out in a tick, callers have room", model.IdleWalk{Clients: 2, Calls: 3, Adds: 3, Room: true, Later: 2, Look: 3, Limits: model.IdleLimits{Every: 1}}, true},
	{"one is handed out in two ticks, limits change, looks at several queues", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Together: true, Limits: model.IdleLimits{Every: 2, Changes: 1, Pauses: 1}}, true},
	{"both, leases end", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Lease: 3, Look: 3, Later: 2, Limits: model.IdleLimits{Running: 1, Every: 2}}, false},
	{"both, pauses", model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Limits: model.IdleLimits{Running: 1, Every: 1, Pauses: 1}}, false},
	{"both, three clients", model.IdleWalk{Clients: 3, Calls: 3, Adds: 1, Limits: model.IdleLimits{Running: 1, Every: 1, Changes: 1}}, true},
	{"both, any fault", model.IdleWalk{Clients: 2, Calls: 2, Adds: 2, Faults: 1, Kinds: model.AnyIdleFault, Limits: model.IdleLimits{Running: 1, Every: 1}}, false},
}

func TestIdleWalk_HoldsTheInvariants(t *testing.T) {
	t.Parallel()
	for _, test := range slices.Concat(idleWalksWithoutFaults, idleWalksWithFaults, idleWalksWithLimits) {
		if test.full && !*full {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			start := time.Now()
			report := idleWalk(test.walk).Walk()
			t.Log(report, time.Since(start).Round(time.Millisecond))
			require.Empty(t, report.Violation)
		})
	}
}

const (
	tooLate    = "a task is due for longer than the bound, and a live client waits"
	unaware    = "a live client is in line for longer than an interval, and does not know it"
	twice      = "a task is handed out twice at the same time"
	tooEarly   = "a task is handed out before it is due"
	twoWatches = "two watches run"
	deadWatch  = "the watch of a dead client runs for longer than one takes"
	dropped    = "an entry is removed, and its client neither told nor dead"
)

// findsMistake requires that a walk with a mistake ends in this violation.
func findsMistake(t *testing.T, walk model.IdleWalk, mistake, violation string) {
	t.Run(mistake, func(t *testing.T) {
		w := idleWalk(walk)
		w.Mistake = mistake
		report := w.Walk()
		t.Log(report)
		require.Equal(t, violation, report.Violation)
	})
}

// TestIdleWalk_FindsEveryMistake breaks the protocol in one place each time.
func TestIdleWalk_FindsEveryMistake(t *testing.T) {
	t.Parallel()
	two := model.IdleWalk{Clients: 2, Calls: 3, Adds: 2}
	givesUp := model.IdleWalk{Clients: 2, Calls: 3, Adds: 1, GiveUps: true}
	later := model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Look: 3, Later: 2}
	room := model.IdleWalk{Clients: 2, Calls: 3, Adds: 3, Look: 3, Later: 2, Room: true}
	shortWatch := model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Look: 3, Later: 3, Told: 1}
	for _, test := range []struct {
		mistake   string
		walk      model.IdleWalk
		violation string
	}{
		{model.NewHeadTellsNobody, two, tooLate},
		{model.EarlierHeadTellsNobody, later, tooLate},
		{model.ToldStaysInLine, two, unaware},
		{model.DeniedTakesOut, model.IdleWalk{Clients: 2, Calls: 2, Adds: 1, Faults: 1, Kinds: model.IdleDenied}, dropped},
		{model.ClaimTellsNobody, two, tooLate},
		{model.ClaimTakesWhatIsNotDue, two, twice},
		{model.ClaimTakesWhatIsNotDue, model.IdleWalk{Clients: 1, Calls: 1, Adds: 1, Directly: true}, tooEarly},
		{model.BusyStaysInLine, two, unaware},
		{model.BusyHandsNothingOn, model.IdleWalk{Clients: 2, Calls: 4, Adds: 2, Look: 3, Later: 2, Lease: 2}, tooLate},
		{model.EveryoneWatches, two, twoWatches},
		{model.WatchNeverEnds, model.IdleWalk{Clients: 2, Calls: 2, Adds: 2, Faults: 1, Kinds: model.IdleHalfOpen}, deadWatch},
		{model.ToldPassesNothingOn, givesUp, tooLate},
		{model.AlonePassesNothingOn, givesUp, tooLate},
		{model.LeaveTellsNobody, givesUp, tooLate},
		{model.LookDoesNotJoin, two, tooLate},
		{model.LooksOnce, model.IdleWalk{Clients: 2, Calls: 2, Foreign: 1}, tooLate},
		{model.OldReplyOverwrites, two, tooLate},
		{model.AloneNeverPassesOn, givesUp, unaware},
		{model.LapsedIsTakenOut, shortWatch, dropped},
		{model.LookTakesOutTheLapsed, shortWatch, dropped},
		{model.ClaimHidesTheNext, two, tooLate},
		{model.RoomHidesTheNext, room, tooLate},
		{model.RoomSeesToNothing, room, tooLate},
		{model.RoomSeesToNothingLater, room, tooLate},
		{model.NeverUnsure, model.IdleWalk{Clients: 1, Calls: 4, Adds: 3, Room: true, Directly: true}, unaware},
	} {
		if test.mistake == model.RoomSeesToNothingLater && !*full { // it takes as long as all others
			continue
		}
		findsMistake(t, test.walk, test.mistake, test.violation)
	}
}

const (
	beyondLimits = "a task is handed out beyond a limit"
	inPause      = "a task is handed out in a pause"
)

// TestIdleWalk_FindsEveryMistakeOfLimits breaks limits in one place each time.
func TestIdleWalk_FindsEveryMistakeOfLimits(t *testing.T) {
	t.Parallel()
	running := model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Limits: model.IdleLimits{Running: 1}}
	rate := model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Limits: model.IdleLimits{Every: 1}}
	both := model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Limits: model.IdleLimits{Running: 1, Every: 1, Changes: 1, Pauses: 1}}
	ends := model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Lease: 1, Limits: model.IdleLimits{Running: 1}}
	claims := model.IdleWalk{Clients: 2, Calls: 3, Adds: 2, Later: 2, Look: 3, Directly: true, Limits: model.IdleLimits{Running: 1}}
	for _, test := range []struct {
		mistake   string
		walk      model.IdleWalk
		violation string
	}{
		{model.FinishWakesNobody, running, tooLate},
		{model.FinishAndClaimWakes, claims, tooLate},
		{model.RateWithoutWatchman, rate, tooLate},
		{model.FullWithoutWatchman, ends, tooLate},
		{model.OneMoreIsLeased, running, beyondLimits},
		{model.FinishGivesTokensBack, rate, beyondLimits},
		{model.LimitsLoseThePause, both, inPause},
		{model.PauseLosesTheLimits, both, beyondLimits},
		{model.LimitsTellNobody, both, tooLate},
		{model.ResumeTellsNobody, both, tooLate},
	} {
		findsMistake(t, test.walk, test.mistake, test.violation)
	}
}
