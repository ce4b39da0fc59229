package taskloop

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// only returns an onExchange that has a fault in that exchange.
func only(n int, f fault) func(int) fault {
	return func(m int) fault {
		if m == n {
			return f
		}
		return fault{}
	}
}

// reported returns the exchanges that report something.
func reportedIn(exchanges []exchanged) (all []exchanged) {
	for _, x := range exchanges {
		if len(x.reports) > 0 {
			all = append(all, x)
		}
	}
	return all
}

// TestExchange_IsRepeatedWithTheSameReceipt: after a reply that is lost, the receipt is not
// good any more, and that is the proof that the disposition was accepted.
func TestExchange_IsRepeatedWithTheSameReceipt(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Minute, "a")
		q.onExchange = only(2, replyIsLost)
		w := newWorker(q, 1, time.Second).run(t)
		time.Sleep(10 * time.Second)
		exchanges, _ := q.sent()
		reports := reportedIn(exchanges)
		require.Len(t, reports, 2)
		for _, x := range reports {
			require.Equal(t, map[store.Settler][]string{store.ByExchange: {"r1 a"}}, x.reports)
		}
		require.Empty(t, q.left())
		require.Equal(t, [5]int64{1}, w.counts())
		require.Nil(t, w.end())
	})
}

// TestExchange_ARequestThatFailsIsRepeated: whether its outcome is known or not.
func TestExchange_ARequestThatFailsIsRepeated(t *testing.T) {
	for _, f := range []fault{requestFails, unconnected, denied} {
		t.Run("", func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(time.Minute, "a")
				q.onExchange = func(n int) fault {
					if n <= 3 || n == 5 || n == 6 {
						return f
					}
					return fault{}
				}
				w := newWorker(q, 1, time.Second).run(t)
				time.Sleep(10 * time.Second)
				require.Equal(t, [5]int64{1}, w.counts())
				require.Equal(t, []string{"a"}, w.tasks())
				require.Nil(t, w.end())
			})
		})
	}
}

// TestExchange_AStaleReceiptWithoutAmbiguityIsALoss: the task is another worker's.
func TestExchange_AStaleReceiptWithoutAmbiguityIsALoss(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Minute, "a")
		q.onExchange = only(2, unconnected) // to be sent again makes nothing ambiguous
		w := newWorker(q, 1, time.Second).run(t)
		synctest.Wait()
		q.steal("a")
		time.Sleep(10 * time.Second)
		require.Equal(t, [5]int64{0, 0, 0, 0, 1}, w.counts())
		require.Equal(t, 1, w.logged(warnLost))
		require.Nil(t, w.end())
	})
}

// TestExchange_AnswersDecide what becomes of a delivery: a stale receipt is an acceptance
// only after a reply that was lost, while the lease is ours.
func TestExchange_AnswersDecide(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer   store.Answer
		reported reportState
		over     bool // the lease
		want     state
		canceled bool
	}{
		"accepted":               {answer: store.Accepted, reported: sentOnce, want: settled},
		"accepted, over":         {answer: store.Accepted, reported: sentOnce, over: true, want: settled},
		"stale":                  {answer: store.Stale, reported: sentOnce, want: lost},
		"stale, ambiguous":       {answer: store.Stale, reported: ambiguous, want: settled},
		"stale, ambiguous, over": {answer: store.Stale, reported: ambiguous, over: true, want: lost},
		"gone":                   {answer: store.Gone, reported: sentOnce, want: lost, canceled: true},
		"gone, over":             {answer: store.Gone, reported: sentOnce, over: true, want: lost},
		"gone, ambiguous":        {answer: store.Gone, reported: ambiguous, want: settled},
		"a version took over":    {answer: store.TookOver, reported: sentOnce, want: settled},
		"malformed":              {answer: store.Malformed, reported: sentOnce, want: pending},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorker(newQueue(time.Minute), 1, 0)
			l := newLoop(t.Context(), w.config())
			d := &delivery{queue: l.queues[0], state: reporting, reported: test.reported, until: time.Now().Add(time.Hour)}
			d.task.Payload = []byte("payload")
			if test.over {
				d.until = time.Now()
			}
			l.settleDelivery(d, test.answer)
			require.Equal(t, test.want, d.state)
			require.EqualValues(t, btoi(test.want == settled), w.Counters.Ended[Done].Load())
			require.EqualValues(t, btoi(test.want == lost && !test.canceled), w.Counters.Ended[Lost].Load())
			require.EqualValues(t, btoi(test.canceled), w.Counters.Ended[Canceled].Load())
			if test.want == pending {
				require.Equal(t, store.Disposition{Action: store.Bury, Reason: "malformed"}, d.disposition)
				require.Equal(t, []*delivery{d}, l.queues[0].pending)
			} else {
				require.Nil(t, d.task.Payload, "it is not kept")
			}
			l.settleDelivery(d, store.Accepted)
			require.EqualValues(t, btoi(test.want == settled), w.Counters.Ended[Done].Load(), "nothing counts twice")
		})
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestExchange_AMalformedTaskIsSetAside(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Minute, "a", "b")
		q.malformed = "a"
		w := newWorker(q, 2, time.Second).run(t)
		time.Sleep(10 * time.Second)
		require.Equal(t, []string{"a buried: malformed"}, q.left())
		require.Equal(t, [5]int64{1, 0, 1, 0, 0}, w.counts())
		require.Nil(t, w.end())
	})
}

// TestExchange_NothingIsRepeatedAfterItsLease: a success could not be told from another
// claim's.
func TestExchange_NothingIsRepeatedAfterItsLease(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(10*time.Second, "a")
		q.onExchange = func(n int) fault {
			if n > 1 {
				return requestFails
			}
			return fault{}
		}
		w := newWorker(q, 1, time.Second).run(t)
		time.Sleep(9 * time.Second)
		require.Zero(t, w.counts()[4])
		time.Sleep(10 * time.Second)
		exchanges, _ := q.sent()
		reports := reportedIn(exchanges)
		until := 10*time.Second - 102*time.Millisecond
		require.Less(t, reports[len(reports)-1].at.Sub(w.start), until)
		require.Greater(t, reports[len(reports)-1].at.Sub(w.start), until-time.Second, "but until then")
		require.Equal(t, [5]int64{0, 0, 0, 0, 1}, w.counts())
		require.Nil(t, w.end())
	})
}

// TestExchange_OfALateAnswerOnlyAcceptancesCount: the exchange was given up after five
// seconds, and its dispositions went out again.
func TestExchange_OfALateAnswerOnlyAcceptancesCount(t *testing.T) {
	for name, test := range map[string]struct {
		second, third fault // those exchanges have the disposition
		reports       int   // how many have it in all
		settledAt     time.Duration
	}{
		"accepted before the copy was": {
			second: fault{reply: 8 * time.Second}, reports: 2, settledAt: 6 * time.Second,
		},
		"accepted while the copy waits to be sent": {
			second: fault{reply: 5*time.Second + time.Millisecond}, reports: 1, settledAt: 6*time.Second + time.Millisecond,
		},
		"accepted, and the copy has no answer": {
			second: fault{reply: 6 * time.Second}, third: fault{request: 2 * time.Second, outcome: redisexec.Unknown},
			reports: 2, settledAt: 7 * time.Second,
		},
		"stale, after the copy was accepted": {
			second: fault{request: 6 * time.Second}, third: fault{reply: 3 * time.Second},
			reports: 2, settledAt: 9 * time.Second,
		},
		"rejected": {
			second: fault{reply: 7 * time.Second, outcome: redisexec.Rejected}, reports: 2, settledAt: 6 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(time.Minute, "a")
				q.onExchange = func(n int) fault { return []fault{{}, {}, test.second, test.third, {}, {}, {}, {}}[min(n, 7)] }
				w := newWorker(q, 1, time.Second)
				w.run(t)
				// No pause after a failure is shorter than 5 ms or longer than 10 ms here.
				time.Sleep(test.settledAt - time.Microsecond)
				require.Zero(t, w.counts())
				time.Sleep(11 * time.Millisecond)
				require.Equal(t, [5]int64{1}, w.counts())
				time.Sleep(30 * time.Second)
				require.Equal(t, [5]int64{1}, w.counts())
				exchanges, _ := q.sent()
				require.Len(t, reportedIn(exchanges), test.reports)
				require.Zero(t, w.logged(warnLost))
				require.Nil(t, w.end())
			})
		})
	}
}

// TestExchange_IsGivenUpAfterAThirdOfTheLease: a second at least and five at most.
func TestExchange_IsGivenUpAfterAThirdOfTheLease(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		time.Second: time.Second, 9 * time.Second: 3 * time.Second, time.Hour: 5 * time.Second,
	} {
		t.Run(ttl.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(ttl)
				q.onExchange = only(1, fault{request: 20 * time.Second})
				w := newWorker(q, 1, 0).run(t)
				time.Sleep(10 * time.Second)
				exchanges, _ := q.sent()
				require.Len(t, exchanges, 2)
				require.InDelta(t, want, exchanges[1].at.Sub(w.start), float64(10*time.Millisecond), "and the pause after a failure")
				time.Sleep(time.Minute)
				require.Nil(t, w.end())
			})
		})
	}
}

// TestExchange_TasksClaimedTooLateAreNotBegun: their leases may be another worker's.
func TestExchange_TasksClaimedTooLateAreNotBegun(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(3*time.Second, "a", "b")
		q.onExchange = func(n int) fault {
			if n == 1 {
				return fault{reply: 4 * time.Second}
			}
			return fault{}
		}
		w := newWorker(q, 5, time.Second).run(t) // so that there are runners for them
		time.Sleep(20 * time.Second)
		require.ElementsMatch(t, []string{"a", "b"}, w.tasks(), "from the second claim")
		require.Equal(t, [5]int64{2, 0, 0, 0, 2}, w.counts())
		require.Nil(t, w.end())
	})
}

// TestExchange_AClaimIsNotDispatchedAfterItsLease: not even for a moment.
func TestExchange_AClaimIsNotDispatchedAfterItsLease(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorker(newQueue(3*time.Second), 5, 0)
		l := newLoop(t.Context(), w.config())
		x := &exchange{queue: l.queues[0], sent: time.Now(), claim: 5, claimed: ClaimResult{Exchanged: store.Exchanged{Receipt: "r1", Tasks: make([]store.Task, 2)}}}
		time.Sleep(3*time.Second - 32*time.Millisecond) // the safe part of the lease
		l.settle(x)
		require.Empty(t, l.handling)
		require.Empty(t, l.work)
		require.Len(t, l.queues[0].pending, 2, "they are given back")
		require.Equal(t, store.Disposition{Action: store.Release}, l.queues[0].pending[0].disposition)
		require.Equal(t, 1, l.queues[0].demand.most, "it counts as unanswered")
		require.True(t, l.queues[0].health.isOut(), "the next claim waits")
		l.close()
	})
}

// TestExchange_TasksWithoutARunnerAreGivenBack: the claim was given up, and another one has
// filled its runners.
func TestExchange_TasksWithoutARunnerAreGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Minute, "a", "b")
		q.onExchange = only(1, fault{reply: 6 * time.Second})
		w := newWorker(q, 1, time.Minute).run(t)
		time.Sleep(6*time.Second + time.Millisecond)
		require.Equal(t, []string{"b"}, w.tasks())
		require.Equal(t, [5]int64{0, 0, 0, 1, 0}, w.counts())
		q.set(func() { require.Zero(t, q.items[0].Attempt, "the attempt does not count") })
		require.Nil(t, w.end())
	})
}

// TestExchange_ADueNoticeDuringAClaimLeadsToAnother claim as soon as it is answered.
func TestExchange_ADueNoticeDuringAClaimLeadsToAnother(t *testing.T) {
	t.Parallel()
	for _, notice := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(time.Minute)
			w := newWorker(q, 1, 0)
			l := newLoop(t.Context(), w.config())
			require.True(t, l.exchange(time.Now()))
			if notice {
				l.woken(&waiting{queue: l.queues[0], since: time.Now(), stop: func() {}})
			}
			require.False(t, l.exchange(time.Now()), "one at a time")
			l.settle(<-l.exchanged)
			require.Equal(t, notice, l.exchange(time.Now()))
			close(l.over)
		})
	}
}

// TestExchange_AsksForFewAfterAClaimWithoutAnAnswer: for one, and then for twice as many
// each time, whether the reply is lost or is given up.
func TestExchange_AsksForFewAfterAClaimWithoutAnAnswer(t *testing.T) {
	for _, f := range []fault{replyIsLost, requestFails, {reply: 20 * time.Second}} {
		t.Run("", func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(time.Hour, numbered(900)...)
				q.onExchange = only(1, f)
				w := newWorker(q, 500, time.Hour).run(t)
				time.Sleep(10 * time.Second)
				var claims []int
				exchanges, _ := q.sent()
				for _, x := range exchanges {
					claims = append(claims, x.claim)
				}
				require.Equal(t, []int{250, 1, 2, 4, 8, 16, 32}, claims[:7]) // later ones may go out in twos
				time.Sleep(4 * time.Hour)
				require.Nil(t, w.end())
			})
		})
	}
}

// TestExchange_TasksClaimedTooLateAreGivenBack: where each round trip takes longer than the
// lease, no attempt counts, the pauses grow, and the log says so once.
func TestExchange_TasksClaimedTooLateAreGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(100*time.Millisecond, numbered(20)...)
		q.onExchange = func(int) fault { return fault{reply: 150 * time.Millisecond} }
		w := newWorker(q, 4, 0).run(t)
		time.Sleep(time.Minute)
		require.Empty(t, w.tasks())
		require.Equal(t, 2, w.logged(warnOutage), "the second is the last")
		exchanges, _ := q.sent()
		require.Less(t, len(exchanges), 150, "with pauses")
		q.set(func() {
			for _, i := range q.items {
				require.LessOrEqual(t, i.Attempt, 1, "the attempts do not count")
			}
			q.onExchange = nil
		})
		time.Sleep(10 * time.Second)
		require.EqualValues(t, 20, w.Counters.Ended[Done].Load())
		require.Nil(t, w.end())
	})
}

// TestExchange_ASizeThatFailedIsProbedOnceAMinute: claims of more than 10 have no answer.
func TestExchange_ASizeThatFailedIsProbedOnceAMinute(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Hour, numbered(25_000)...)
		q.latency = 500 * time.Millisecond
		tooLarge := func(n int) fault {
			if q.exchanges[n-1].claim > 10 {
				return fault{request: 2 * time.Second, outcome: redisexec.Unknown}
			}
			return fault{}
		}
		q.onExchange = tooLarge
		w := newWorker(q, 64, 0).run(t)
		large := func(from int) (n int) {
			exchanges, _ := q.sent()
			for _, x := range exchanges[from:] {
				if x.claim > 10 {
					n++
				}
			}
			return n
		}
		time.Sleep(5 * time.Minute)
		require.LessOrEqual(t, large(0), 10)
		exchanges, _ := q.sent()
		q.set(func() { q.onExchange = nil })
		time.Sleep(90 * time.Second)
		require.Greater(t, large(len(exchanges)), 20, "it is learnt that the limit is gone")
		require.Nil(t, w.end())
	})
}

// TestDemand_FollowsWhatIsAnswered: an answered claim is written as what it asked for and
// brought, one without an answer with -1.
func TestDemand_FollowsWhatIsAnswered(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		events [][2]int
		want   int // the next claim asks for, of 250
		later  int // after a minute
	}{
		"nothing":                         {nil, 250, 250},
		"a failure":                       {[][2]int{{16, -1}}, 1, 1},
		"to half of it":                   {[][2]int{{16, -1}, {1, 1}, {2, 2}, {4, 4}, {8, 8}}, 8, 16},
		"no further":                      {[][2]int{{16, -1}, {1, 1}, {2, 2}, {4, 4}, {8, 8}, {8, 8}}, 8, 16},
		"fewer than asked for":            {[][2]int{{16, -1}, {1, 1}, {2, 1}, {2, 0}}, 2, 2},
		"the half fails":                  {[][2]int{{16, -1}, {1, 1}, {2, 2}, {4, 4}, {8, -1}, {1, 1}, {2, 2}, {4, 4}}, 4, 8},
		"the probe fails":                 {[][2]int{{16, -1}, {1, 1}, {2, 2}, {4, 4}, {8, 8}, {16, -1}, {1, 1}, {2, 2}, {4, 4}, {8, 8}}, 8, 16},
		"the probe is answered":           {[][2]int{{16, -1}, {1, 1}, {2, 2}, {4, 4}, {8, 8}, {16, 16}}, 32, 32},
		"the probe brings some":           {[][2]int{{16, -1}, {1, 1}, {2, 2}, {4, 4}, {8, 8}, {16, 5}}, 8, 16},
		"an outage":                       {[][2]int{{16, 16}, {16, -1}, {1, -1}, {1, -1}, {1, 1}, {2, 2}, {4, 4}, {8, 8}}, 16, 16},
		"a size that worked fails twice":  {[][2]int{{16, 16}, {16, -1}, {1, 1}, {2, 2}, {4, 4}, {8, 8}, {16, -1}, {1, 1}, {2, 2}, {4, 4}, {8, 8}}, 8, 16},
		"of two at a time one is a probe": {[][2]int{{2, -1}, {1, 1}, {2, -2}}, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d demand
			now := time.Now()
			for _, e := range test.events {
				d.noteAsked(e[0], now)
				switch {
				case e[1] >= 0:
					d.noteAnswered(e[0], e[1])
				case e[1] == -1:
					d.noteUnanswered(e[0], now)
				}
			}
			require.Equal(t, test.want, d.size(250, now))
			require.Equal(t, test.later, d.size(250, now.Add(probePause)))
		})
	}
}
