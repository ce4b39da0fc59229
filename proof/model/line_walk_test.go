package model_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/proof/model"
)

// lineWalk returns w with intervals that grow with the place in line more steeply than the
// library's, unless it has some.
func lineWalk(w model.LineWalk) model.LineWalk {
	if w.Polls == [4]int8{} {
		w.Polls = [4]int8{1, 2, 3, 4}
	}
	return w
}

type lineWalkTest struct {
	name string
	walk model.LineWalk
	full bool
}

const resent = model.ReplyLost | model.RequestHeldUp

var (
	threeOnce = [4]int{1, 1, 1}
	twoTwice  = [4]int{2, 2}
)

var lineWalksWithoutFaults = []lineWalkTest{
	{"two processes twice", model.LineWalk{Calls: twoTwice, TTL: 2, GiveUps: 1}, false},
	{"three processes, one gives up", model.LineWalk{Calls: threeOnce, TTL: 2, GiveUps: 1}, false},
	{"two give up", model.LineWalk{Calls: threeOnce, TTL: 2, GiveUps: 2}, false},
	{"twice", model.LineWalk{Calls: [4]int{2, 1, 1}}, false},
	{"two of three twice", model.LineWalk{Calls: [4]int{2, 2, 1}}, true},
	{"two of three twice, subscribed", model.LineWalk{Calls: [4]int{2, 2, 1}, Subscribed: true}, false},
	{"twice, one gives up", model.LineWalk{Calls: [4]int{2, 1, 1}, Subscribed: true, GiveUps: 1}, false},
	{"twice, one gives up, polling", model.LineWalk{Calls: [4]int{2, 2, 1}, Subscribed: true, TTL: 2, GiveUps: 1}, true},
	{"all of three twice", model.LineWalk{Calls: [4]int{2, 2, 2}}, true},
	{"all of three twice, one gives up", model.LineWalk{Calls: [4]int{2, 2, 2}, Subscribed: true, GiveUps: 1}, true},
	{"four", model.LineWalk{Calls: [4]int{1, 1, 1, 1}, Subscribed: true}, true},
	{"extending", model.LineWalk{Calls: threeOnce, TTL: 2, Extends: true}, false},
	{"subscriptions end", model.LineWalk{Calls: [4]int{2, 1, 1}, Forgets: true}, false},
	{"callers of one process", model.LineWalk{Calls: [4]int{2, 2, 1}, Together: true, Subscribed: true, GiveUps: 1}, false},
	{"three callers of one process", model.LineWalk{Calls: [4]int{3, 2, 0}, Together: true, GiveUps: 2, TTL: 2}, false},
	{"three callers of one process, three processes", model.LineWalk{Calls: [4]int{3, 1, 1}, Together: true, GiveUps: 2, TTL: 2}, true},
}

var lineWalksWithFaults = []lineWalkTest{
	{"a woken process is slow", model.LineWalk{Calls: threeOnce, TTL: 2, Faults: 1, Kinds: model.WokenIsSlow, Bound: 1}, false},
	{"a woken process is slow, two processes twice", model.LineWalk{Calls: twoTwice, TTL: 2, GiveUps: 1, Faults: 2, Kinds: model.WokenIsSlow, Bound: 2}, false},
	{"a woken process is slow, twice", model.LineWalk{Calls: [4]int{2, 1, 1}, Subscribed: true, TTL: 2, Faults: 2, Kinds: model.WokenIsSlow, Bound: 2}, true},
	{"a message is lost", model.LineWalk{Calls: threeOnce, TTL: 2, Faults: 1, Kinds: model.MessageLost, Bound: 1}, false},
	{"a message is lost, twice", model.LineWalk{Calls: [4]int{2, 1, 1}, TTL: 2, Faults: 1, Kinds: model.MessageLost, Bound: 1}, true},
	{"every message is lost", model.LineWalk{Calls: threeOnce, TTL: 2, Polls: [4]int8{1, 1, 1, 1}, Faults: 8, Kinds: model.MessageLost, Bound: 1}, false},
	{"the holder dies", model.LineWalk{Calls: threeOnce, TTL: 3, Polls: [4]int8{4, 5, 6, 7}, Extends: true, Faults: 1, Kinds: model.HolderDeath}, false},
	{"the first dies", model.LineWalk{Calls: threeOnce, TTL: 2, Faults: 1, Kinds: model.WaiterDeath | model.HalfOpenDeath, Bound: 1}, false},
	{"two die", model.LineWalk{Calls: threeOnce, TTL: 2, Faults: 2, Kinds: model.HolderDeath | model.WaiterDeath | model.HalfOpenDeath, Bound: 1}, false},
	{"the first two die", model.LineWalk{Calls: [4]int{2, 1, 1}, Subscribed: true, TTL: 2, Faults: 2, Kinds: model.HalfOpenDeath, Bound: 2}, false},
	{"the first two of four die", model.LineWalk{Calls: [4]int{1, 1, 1, 1}, Subscribed: true, TTL: 2, Faults: 2, Kinds: model.HalfOpenDeath, Bound: 3}, true},
	{"a subscription is lost", model.LineWalk{Calls: threeOnce, Subscribed: true, TTL: 2, Faults: 1, Kinds: model.SubscriptionLost, Bound: 2}, false},
	{"the line is lost", model.LineWalk{Calls: threeOnce, TTL: 2, Faults: 1, Kinds: model.LineLost, Bound: 2}, false},
	{"SUBSCRIBE is refused", model.LineWalk{Calls: threeOnce, TTL: 2, Faults: 1, Kinds: model.SubscribeRefused, Bound: 1}, false},
	{"PUBLISH is denied", model.LineWalk{Calls: threeOnce, TTL: 2, Faults: 1, Kinds: model.PublishDenied, Bound: 2}, false},
	{"a command is sent again", model.LineWalk{Calls: threeOnce, Subscribed: true, Faults: 1, Kinds: resent}, false},
	{"a command is sent again, twice", model.LineWalk{Calls: twoTwice, Faults: 1, Kinds: resent}, false},
	{"a command is sent again, polling", model.LineWalk{Calls: twoTwice, Subscribed: true, TTL: 2, Faults: 1, Kinds: resent, Bound: 1}, false},
	{"a command is sent again, three polling", model.LineWalk{Calls: threeOnce, Subscribed: true, TTL: 2, Faults: 1, Kinds: resent, Bound: 1}, true},
	{"a call is abandoned", model.LineWalk{Calls: threeOnce, TTL: 2, Faults: 1, Kinds: model.CallAbandoned, Bound: 1}, false},
	{"a call of several is abandoned", model.LineWalk{Calls: [4]int{2, 1, 1}, Together: true, Subscribed: true, Faults: 1, Kinds: model.CallAbandoned}, false},
	{"a leave is held up", model.LineWalk{Calls: [4]int{2, 1, 1}, Subscribed: true, GiveUps: 1, Faults: 1, Kinds: model.LeaveHeldUp}, false},
	{"any fault, two processes twice", model.LineWalk{Calls: twoTwice, TTL: 2, Faults: 1, Kinds: model.AnyLineFault, Bound: 2}, false},
	{"any fault", model.LineWalk{Calls: threeOnce, Subscribed: true, GiveUps: 1, TTL: 2, Faults: 1, Kinds: model.AnyLineFault, Bound: 2}, true},
	{"any two faults, two processes", model.LineWalk{Calls: [4]int{1, 1, 0}, GiveUps: 1, TTL: 2, Faults: 2, Kinds: model.AnyLineFault, Bound: 4}, true},
}

func TestLineWalk_HoldsTheInvariants(t *testing.T) {
	t.Parallel()
	for _, test := range slices.Concat(lineWalksWithoutFaults, lineWalksWithFaults) {
		if test.full && !*full {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			start := time.Now()
			report := lineWalk(test.walk).Walk()
			t.Log(report, time.Since(start).Round(time.Millisecond))
			require.Empty(t, report.Violation)
		})
	}
}

// TestLineWalk_FindsEveryMistake breaks the protocol in one place each time.
func TestLineWalk_FindsEveryMistake(t *testing.T) {
	t.Parallel()
	three, polling := model.LineWalk{Calls: threeOnce}, model.LineWalk{Calls: threeOnce, TTL: 2}
	givesUp, twiceGivesUp := model.LineWalk{Calls: threeOnce, GiveUps: 1}, model.LineWalk{Calls: [4]int{2, 1, 1}, GiveUps: 1}
	together := model.LineWalk{Calls: twoTwice, Together: true, GiveUps: 1}
	fault := func(kind model.LineFault, bound int8) model.LineWalk {
		return model.LineWalk{Calls: threeOnce, TTL: 2, Faults: 1, Kinds: kind, Bound: bound}
	}
	slow, slowTwice := fault(model.WokenIsSlow, 1), fault(model.WokenIsSlow, 1)
	slowTwice.Calls, slowTwice.Subscribed = [4]int{2, 1, 1}, true
	heldUp := model.LineWalk{Calls: threeOnce, Subscribed: true, Faults: 1, Kinds: model.RequestHeldUp}
	for mistake, w := range map[string]model.LineWalk{
		model.NoPollAfterSubscribing:   three,
		model.ReleaseWithoutCompare:    givesUp,
		model.ReleaseDoesNotWake:       three,
		model.ReleaseFreesTheLock:      three,
		model.ReleaseWakesTheLast:      three,
		model.SetIgnoresReservation:    three,
		model.TakesAnyReservation:      three,
		model.ReleaserTakesReservation: {Calls: twoTwice},
		model.TakesByProcess:           twiceGivesUp,
		model.ReservationWithoutEnd:    fault(model.HalfOpenDeath, 1),
		model.ReservedStaysInLine:      three,
		model.NextNotTold:              three,
		model.LateComerPolls:           slow,
		model.LateComerJoinsLast:       slowTwice,
		model.LateComerKeepsEntry:      slow,
		model.LateComerLeavesFirst:     slowTwice,
		model.LeaveKeepsReservation:    givesUp,
		model.LeaveEndsAnyReservation:  twiceGivesUp,
		model.LeaveByProcess:           twiceGivesUp,
		model.LeaveDoesNotTell:         givesUp,
		model.LeaveNotSent:             givesUp,
		model.LeaveSentOnce:            heldUp,
		model.LeaveWithoutNumber:       {Calls: twoTwice, GiveUps: 1},
		model.TakerDoesNotTell:         polling,
		model.GoneDroppedUntold:        fault(model.WaiterDeath, 1),
		model.EntryKept:                polling,
		model.DeniedRemovesEntry:       fault(model.PublishDenied, 2),
		model.JoinWithoutSubscriber:    three,
		model.RejoinWithNewScore:       fault(model.SubscriptionLost, 2),
		model.RetryKeepsNumber:         heldUp,
		model.HeadDropsEntry:           together,
		model.HeadKeepsWakeUp:          together,
		model.WakeUpInFlightDropped:    three,
		model.ToldInFlightDropped:      givesUp,
		model.ToldWithoutCallerDropped: {Calls: [4]int{1, 2, 1}, GiveUps: 2},
	} {
		t.Run(mistake, func(t *testing.T) {
			w.Mistake = mistake
			report := lineWalk(w).Walk()
			t.Log(report)
			require.NotEmpty(t, report.Violation)
			if w.Mistake = ""; *full {
				require.Empty(t, lineWalk(w).Walk().Violation, "without the mistake")
			}
		})
	}
}
