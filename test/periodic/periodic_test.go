package periodic

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// daily is a schedule like that of cron: each day at this time in a zone. A time that a day does
// not have, since clocks were set ahead, is left out; one that it has twice is the first.
type daily struct {
	hour, minute int
	zone         *time.Location
}

func (d daily) Next(t time.Time) time.Time {
	t = t.In(d.zone)
	for day := 0; ; day++ {
		next := time.Date(t.Year(), t.Month(), t.Day()+day, d.hour, d.minute, 0, 0, d.zone)
		if next.After(t) && next.Hour() == d.hour && next.Minute() == d.minute {
			return next
		}
	}
}

// fromThen is a schedule that counts from the time that it is given, as the @every of cron
// packages.
type fromThen time.Duration

func (d fromThen) Next(t time.Time) time.Time { return t.Add(time.Duration(d)).Truncate(time.Second) }

// scheduleFunc is a schedule that is a function.
type scheduleFunc func(t time.Time) time.Time

func (f scheduleFunc) Next(t time.Time) time.Time { return f(t) }

// run is a call of a handler for an occurrence.
type run struct {
	id      string
	due, at time.Time
	attempt int
	payload string
	worker  string
}

// runs are the calls of the handlers of a test.
type runs struct {
	mu  sync.Mutex // guards what follows
	all []run
}

// note notes a call.
func (r *runs) note(worker string, e sluice.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, run{e.ID, e.Due, time.Now(), e.Attempt, string(e.Payload), worker})
}

// forget forgets all calls.
func (r *runs) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = nil
}

// of returns the calls for an ID.
func (r *runs) of(id string) (of []run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, run := range r.all {
		if run.id == id {
			of = append(of, run)
		}
	}
	return of
}

// requireOn requires that there was one call for each of the occurrences of a schedule in a time,
// at most so late, and no other.
func (r *runs) requireOn(t *testing.T, id string, s sluice.Schedule, from, to time.Time, late time.Duration) {
	t.Helper()
	var want, got []string
	for at := s.Next(from); at.Before(to); at = s.Next(at) {
		want = append(want, at.UTC().String())
	}
	for _, run := range r.of(id) {
		got = append(got, run.due.UTC().String())
		require.False(t, run.at.Before(run.due), "%v", run)
		require.LessOrEqual(t, run.at.Sub(run.due), late, "%v", run)
	}
	for i := range max(len(want), len(got)) {
		require.Less(t, i, len(got), "not handled: %s", want[min(i, len(want)-1)])
		require.Less(t, i, len(want), "not of the schedule: %s", got[i])
		require.Equal(t, want[i], got[i])
	}
}

// periodicTest is a test in a bubble, with as many workers as it starts.
type periodicTest struct {
	systest.QueueTest
	runs
	server *miniredis.Miniredis
	start  time.Time
	log    systest.Buffer
}

func inPeriodicTest(t *testing.T, test func(b *periodicTest), opts ...sluice.QueueOption) {
	t.Helper()
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		b := &periodicTest{QueueTest: systest.NewQueueTest(t, rdb, redistest.Name(t), append(opts, sluice.WithPollInterval(10*time.Minute))...), server: m, start: time.Now()}
		defer time.Sleep(time.Minute) // so that what lingers has ended
		test(b)
	})
}

// work starts a worker. handle may be nil.
func (b *periodicTest) work(name string, handle func(ctx context.Context, e sluice.Entry) error, tasks ...sluice.Periodic) (w *sluice.Worker, stop func()) {
	w = &sluice.Worker{Timeout: -1, Queue: b.Q, Periodic: tasks, Logger: systest.LogTo(&b.log), Backoff: systest.After(time.Second),
		Handler: func(ctx context.Context, e sluice.Entry) error {
			b.note(name, e)
			if handle == nil {
				return nil
			}
			return handle(ctx, e)
		}}
	end := systest.StartWorker(b.T, w)
	return w, func() { require.NoError(b, end()) }
}

// hour is the start of a full hour after that of the test.
func (b *periodicTest) hour(n int) time.Time {
	return b.start.Truncate(time.Hour).Add(time.Duration(n) * time.Hour)
}

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	require.NoError(t, err)
	return z
}

const soon = 20 * time.Millisecond

func TestEvery_IsTheMultiplesSinceTheEpoch(t *testing.T) {
	at := func(s string) time.Time {
		at, err := time.Parse(time.RFC3339Nano, s)
		require.NoError(t, err)
		return at
	}
	for _, test := range []struct {
		every       time.Duration
		after, want string
	}{
		{time.Hour, "2026-01-02T03:04:05.678Z", "2026-01-02T04:00:00Z"},
		{time.Hour, "2026-01-02T03:00:00Z", "2026-01-02T04:00:00Z"},
		{time.Hour, "2026-01-02T02:59:59.999999999Z", "2026-01-02T03:00:00Z"},
		{7 * time.Millisecond, "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.007Z"},
		{100 * 365 * 24 * time.Hour, "2026-01-02T03:04:05Z", "2069-12-07T00:00:00Z"},
	} {
		require.Equal(t, test.want, sluice.Every(test.every).Next(at(test.after)).UTC().Format(time.RFC3339Nano), "%v", test)
	}
	require.True(t, sluice.Every(0).Next(time.Now()).IsZero())
	require.True(t, sluice.Every(-1).Next(time.Now()).IsZero())
	require.True(t, sluice.Every(1<<63-1).Next(at("2026-01-02T03:04:05Z")).After(at("2199-01-01T00:00:00Z")))
	require.True(t, sluice.Every(time.Hour).Next(at("9999-01-01T00:00:00Z")).IsZero())
}

// TestDaily_IsOnceEachDay of a place, also where its clocks change: at the time, at the moment at
// which they skip it, or at the first of two.
func TestDaily_IsOnceEachDay(t *testing.T) {
	t.Parallel()
	for name, years := range map[string][2]int{
		"America/New_York": {1999, 2002}, "Europe/Berlin": {2024, 2025}, "America/Sao_Paulo": {2016, 2018}, "Asia/Gaza": {2009, 2012},
		"Pacific/Apia": {2011, 2012}, "Pacific/Kwajalein": {1993, 1994}, "Australia/Lord_Howe": {2020, 2021}, "Antarctica/Troll": {2015, 2016},
		"America/Scoresbysund": {2023, 2025}, "Asia/Kathmandu": {1985, 1987}, "UTC": {2024, 2025},
	} {
		place := zone(t, name)
		from, to := time.Date(years[0], 1, 1, 0, 0, 0, 0, place), time.Date(years[1], 1, 1, 0, 0, 0, 0, place)
		var days []string
		for at := from; at.Before(to); at = at.Add(5 * time.Minute) {
			if day := at.Format(time.DateOnly); len(days) == 0 || !slices.Contains(days[max(0, len(days)-2):], day) {
				days = append(days, day)
			}
		}
		for _, clock := range [][2]int{{0, 0}, {0, 30}, {1, 30}, {2, 0}, {2, 30}, {3, 0}, {12, 0}, {23, 30}, {23, 59}} {
			s, at := sluice.Daily(clock[0], clock[1], place), from.Add(-time.Second)
			for _, day := range days {
				before := at
				at = s.Next(at).In(place)
				require.True(t, at.After(before))
				require.Equal(t, at, s.Next(at.Add(-1)).In(place), "the first after any time before it")
				wanted := fmt.Sprintf("%s %02d:%02d", day, clock[0], clock[1])
				shows, showedBefore := at.Format("2006-01-02 15:04"), at.Add(-time.Minute).Format("2006-01-02 15:04")
				require.GreaterOrEqual(t, shows, wanted, "%s at %s", name, at)
				require.Less(t, showedBefore, wanted, "%s at %s", name, at)
				if shows != wanted {
					skipped, _ := at.ZoneBounds()
					require.True(t, at.Equal(skipped), "%s at %s", name, at)
				}
			}
		}
	}
	newYork, utc := zone(t, "America/New_York"), sluice.Daily(2, 30, nil)
	require.Equal(t, "2000-04-02T03:00:00-04:00", sluice.Daily(2, 30, newYork).Next(time.Date(2000, 4, 2, 0, 0, 0, 0, newYork)).In(newYork).Format(time.RFC3339))
	require.Equal(t, "2000-10-29T01:30:00-04:00", sluice.Daily(1, 30, newYork).Next(time.Date(2000, 10, 29, 0, 0, 0, 0, newYork)).In(newYork).Format(time.RFC3339))
	require.Equal(t, "2000-10-29T02:30:00Z", utc.Next(time.Date(2000, 10, 29, 0, 0, 0, 0, time.UTC)).Format(time.RFC3339))
}

func TestWorker_PeriodicIsChecked(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { require.NoError(t, rdb.Close()) }()
	q, err := sluice.NewQueue(rdb, "q")
	require.NoError(t, err)
	good := sluice.Every(time.Hour)
	for text, tasks := range map[string][]sluice.Periodic{
		"ID must be 1 to": {{Schedule: good}},
		"in Periodic[0]: invalid argument: Schedule is nil":        {{ID: "a"}},
		"Schedule: Every takes 1ms":                                {{ID: "a", Schedule: sluice.Every(time.Microsecond)}},
		"Schedule: Every takes":                                    {{ID: "a", Schedule: sluice.Every(0)}},
		"Schedule: Daily takes an hour":                            {{ID: "a", Schedule: sluice.Daily(24, 0, nil)}},
		"Schedule: Daily takes":                                    {{ID: "a", Schedule: sluice.Daily(2, -1, nil)}},
		"in Periodic[2]: invalid argument: another one has its ID": {{ID: "a", Schedule: good}, {ID: "b", Schedule: good}, {ID: "a", Schedule: good}},
		"Header and Payload of":                                    {{ID: "a", Schedule: good, Payload: make([]byte, 1<<20-10)}},
		"a key of Header must be":                                  {{ID: "a", Schedule: good, Header: map[string]string{"": "v"}}},
		"a key of Header begins":                                   {{ID: "a", Schedule: good, Header: map[string]string{"sluice-period": "v"}}},
	} {
		w := &sluice.Worker{Queue: q, Periodic: tasks, Handler: func(context.Context, sluice.Entry) error { return nil }}
		err := w.Run(systest.Ended())
		require.ErrorIs(t, err, sluice.ErrInvalid, text)
		require.ErrorContains(t, err, "sluice: run: Worker: in Periodic[", text)
		require.ErrorContains(t, err, text)
	}
}

// TestPeriodic_RunsOncePerOccurrence however many workers there are, over days in which clocks are
// set ahead and back, and over restarts of all of them.
func TestPeriodic_RunsOncePerOccurrence(t *testing.T) {
	for name, evening := range map[string]time.Time{
		"ahead": time.Date(2000, 3, 25, 22, 0, 0, 1234567, time.UTC), "back": time.Date(2000, 10, 28, 22, 0, 0, 1234567, time.UTC),
	} {
		t.Run(name, func(t *testing.T) {
			if name == "back" {
				redistest.NotShort(t)
			}
			inPeriodicTest(t, func(b *periodicTest) {
				berlin := zone(b.T, "Europe/Berlin")
				time.Sleep(time.Until(evening)) // in the next night clocks are set
				tasks := []sluice.Periodic{
					{ID: "nightly", Schedule: daily{2, 30, berlin}},
					{ID: "morning", Schedule: daily{3, 30, berlin}, Payload: []byte("p"), Header: map[string]string{"k": "v"}},
					{ID: "minutes", Schedule: sluice.Every(29 * time.Minute)},
					{ID: "relative", Schedule: fromThen(90 * time.Minute)},
				}
				handle := func(_ context.Context, e sluice.Entry) error {
					if e.ID == "morning" {
						require.Equal(b, "v", e.Header["k"])
						require.Equal(b, e.Due.UTC().Format(time.RFC3339Nano), e.Header["sluice-period"])
					}
					return nil
				}
				stops := make([]func(), 2)
				for i := range stops {
					_, stops[i] = b.work(fmt.Sprint(i), handle, tasks...)
				}
				for time.Since(evening) < 6*time.Hour {
					time.Sleep(5*time.Hour + 7*time.Minute)
					for i := range stops { // one after the other
						stops[i]()
						_, stops[i] = b.work(fmt.Sprint(i), handle, tasks...)
					}
				}
				to := time.Now()
				for _, stop := range stops {
					stop()
				}
				for _, task := range tasks[:3] {
					b.requireOn(b.T, task.ID, task.Schedule, evening, to, soon)
				}
				relative := b.of("relative")
				require.InDelta(b, to.Sub(evening)/(90*time.Minute), len(relative), 1)
				for i, run := range relative[1:] {
					require.InDelta(b, 90*time.Minute, run.due.Sub(relative[i].due), float64(time.Second))
				}
				require.Len(b, b.of("nightly"), map[string]int{"ahead": 0, "back": 1}[name])
				morning := b.of("morning")
				require.Len(b, morning, 1)
				require.Equal(b, "p", morning[0].payload)
				require.Equal(b, 1, morning[0].attempt)
				require.EqualValues(b, len(tasks), b.Stats().Scheduled)
			})
		})
	}
}

// TestPeriodic_ASlowRunDoesNotPileUp: what is missed is skipped.
func TestPeriodic_ASlowRunDoesNotPileUp(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		_, stop := b.work("", func(context.Context, sluice.Entry) error {
			time.Sleep(25 * time.Second)
			return nil
		}, sluice.Periodic{ID: "slow", Schedule: sluice.Every(10 * time.Second)})
		time.Sleep(2 * time.Minute)
		stop()
		for i, run := range b.of("slow") {
			require.WithinDuration(b, b.start.Add(10*time.Second+time.Duration(i)*30*time.Second), run.at, soon)
			require.Equal(b, run.due.Truncate(10*time.Second), run.due)
		}
		require.Len(b, b.of("slow"), 4)
	})
}

// TestPeriodic_AFailedRunIsRetried, but not past the next occurrence, which it does not keep from
// coming: nor do a permanent error and the last attempt.
func TestPeriodic_AFailedRunIsRetried(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		every := func(id string) sluice.Periodic { return sluice.Periodic{ID: id, Schedule: sluice.Every(time.Hour)} }
		b.Q = b.On(b.RDB, sluice.WithMaxAttempts(3), sluice.WithPollInterval(10*time.Minute))
		w, stop := b.work("", func(_ context.Context, e sluice.Entry) error {
			switch {
			case e.ID == "permanent":
				return sluice.Permanent(errors.New("never"))
			case e.ID == "late" && e.Due.Equal(b.hour(1)): // retried after a second, not after an hour
				time.Sleep(time.Hour - 500*time.Millisecond)
				return errors.New("failed")
			case e.ID == "fails", e.ID == "once" && e.Attempt == 1:
				return errors.New("failed")
			case e.ID == "panics":
				panic("no")
			case e.ID == "again" && len(b.of("again")) < 6:
				return sluice.Again(time.Second)
			case e.ID == "long":
				return sluice.Again(24 * time.Hour)
			}
			return nil
		}, every("permanent"), every("late"), every("fails"), every("once"), every("panics"), every("again"), every("long"))
		time.Sleep(3*time.Hour + time.Minute)
		stop()
		attempts := func(id string) (s []string) {
			for _, run := range b.of(id) {
				require.Equal(b, run.due.Truncate(time.Hour), run.due, "that of the schedule, on retries too")
				s = append(s, fmt.Sprint(run.due.UTC().Hour(), " ", run.attempt))
			}
			return s
		}
		require.Equal(b, []string{"1 1", "2 1", "3 1"}, attempts("permanent"))
		require.Equal(b, []string{"1 1", "2 1", "3 1"}, attempts("late"))
		require.Equal(b, []string{"1 1", "1 2", "1 3", "2 1", "2 2", "2 3", "3 1", "3 2", "3 3"}, attempts("fails"))
		require.Equal(b, []string{"1 1", "1 2", "2 1", "2 2", "3 1", "3 2"}, attempts("once"))
		require.Equal(b, []string{"1 1", "1 2", "1 3", "2 1", "2 2", "2 3", "3 1", "3 2", "3 3"}, attempts("panics"))
		require.Equal(b, []string{"1 1", "1 1", "1 1", "1 1", "1 1", "1 1", "2 1", "3 1"}, attempts("again"))
		require.Equal(b, []string{"1 1", "2 1", "3 1"}, attempts("long"))
		require.Empty(b, b.Dead(1))
		require.Equal(b, sluice.WorkerStats{Done: 2 + 3 + 3, Retried: 3 + 1 + 9 + 3 + 9, Again: 5 + 3}, w.Stats())
		require.Equal(b, 3+3+3, b.log.Count("its waiting version takes over"))
	})
}

// TestPeriodic_ComesBack: one that was cancelled, purged, finished by another, or buried by hand.
func TestPeriodic_ComesBack(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		_, stop := b.work("", nil, sluice.Periodic{ID: "a", Schedule: sluice.Every(time.Hour)})
		defer stop()
		for i, lose := range []func(){
			func() { _, _ = b.Q.Cancel(b.Context(), "a") },
			func() { require.NoError(b, b.Q.Purge(b.Context())) },
			func() { b.Bury(b.Get("a").Entry, "by hand") },
		} {
			time.Sleep(time.Until(b.hour(i).Add(5 * time.Minute)))
			lose()
			time.Sleep(2 * time.Minute)
			require.Equal(b, b.hour(i+1).UTC(), b.Get("a").Due.UTC())
		}
		require.Equal(b, 1, b.log.Count("periodic task was a dead letter"))
		require.Zero(b, b.Stats().Dead)
	})
}

// TestPeriodic_KeepsToTheServersClock, which is not that of the worker.
func TestPeriodic_KeepsToTheServersClock(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		b.server.SetTime(time.Now().Add(85 * time.Minute)) // it stands still there
		_, stop := b.work("", nil, sluice.Periodic{ID: "a", Schedule: sluice.Every(time.Hour)})
		synctest.Wait() // it has put it there
		require.Equal(b, b.hour(2).UTC(), b.Get("a").Due.UTC())
		b.server.SetTime(b.hour(30).Add(3 * time.Minute))
		time.Sleep(12 * time.Minute) // a poll
		require.Equal(b, b.hour(31).UTC(), b.Get("a").Due.UTC())
		require.Len(b, b.of("a"), 1)
		stop()
	})
}

// TestPeriodic_OfTheHandlersWorker: each handler gets the payload of its own program, and an
// operator may have a task run now.
func TestPeriodic_OfTheHandlersWorker(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		task := func(payload string) sluice.Periodic {
			return sluice.Periodic{ID: "a", Schedule: sluice.Every(time.Hour), Payload: []byte(payload)}
		}
		_, stop := b.work("", nil, task("old"))
		time.Sleep(time.Minute)
		stop()
		_, stop = b.work("", nil, task("new"))
		time.Sleep(20 * time.Minute)
		_, err := b.Q.Reschedule(b.Context(), "a", 0)
		require.NoError(b, err)
		time.Sleep(90 * time.Minute)
		stop()
		all := b.of("a")
		require.Len(b, all, 2)
		require.WithinDuration(b, b.start.Add(21*time.Minute), all[0].at, soon)
		require.WithinDuration(b, b.hour(1), all[1].at, soon)
		for _, run := range all {
			require.Equal(b, "new", run.payload)
			require.Equal(b, b.hour(1).UTC(), run.due.UTC())
		}
	})
}

// TestPeriodic_IsNotLostIfTheNextIsRefused: it is tried again, until the server takes it.
func TestPeriodic_IsNotLostIfTheNextIsRefused(t *testing.T) {
	for name, last := range map[string]time.Duration{"within the lease": 10 * time.Second, "for longer": 40 * time.Second} {
		t.Run(name, func(t *testing.T) {
			inPeriodicTest(t, func(b *periodicTest) {
				_, stop := b.work("", func(ctx context.Context, e sluice.Entry) error {
					if len(b.of("a")) == 1 {
						require.NoError(b, b.RDB.Set(ctx, "{"+b.Key+"}:dead", "of another type", 0).Err())
						time.AfterFunc(last, func() { _ = b.RDB.Del(context.Background(), "{"+b.Key+"}:dead").Err() })
					}
					return nil
				}, sluice.Periodic{ID: "a", Schedule: sluice.Every(time.Hour)})
				time.Sleep(5 * time.Hour)
				stop()
				b.requireOn(b.T, "a", sluice.Every(time.Hour), b.start, time.Now(), soon)
			})
		})
	}
}

// TestPeriodic_OnEveryServer, with several workers, in real time.
func TestPeriodic_OnEveryServer(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		var all runs
		var tasks []sluice.Periodic
		for i := range 5 {
			tasks = append(tasks, sluice.Periodic{ID: fmt.Sprint(i), Schedule: sluice.Every(time.Duration(100+20*i) * time.Millisecond)})
		}
		var stops []func() error
		for range 3 {
			w := &sluice.Worker{Queue: b.Q, Periodic: tasks, Handler: func(_ context.Context, e sluice.Entry) error {
				all.note("", e)
				return nil
			}}
			stops = append(stops, systest.StartWorker(b.T, w))
		}
		b.Eventually(func() bool {
			return !slices.ContainsFunc(tasks, func(p sluice.Periodic) bool { return len(all.of(p.ID)) < 5 })
		})
		for _, stop := range stops {
			require.NoError(b, stop())
		}
		for _, task := range tasks {
			of := all.of(task.ID)
			for i, run := range of {
				require.Equal(b, run.due, task.Schedule.Next(run.due.Add(-1)))
				require.True(b, i == 0 || run.due.After(of[i-1].due), "%v", of)
				require.Equal(b, 1, run.attempt)
			}
		}
		stats := b.Stats() // once: what is scheduled may become due
		require.EqualValues(b, len(tasks), stats.Scheduled+stats.Due)
	})
}
