package watch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/store"
)

// unwatched returns a watcher that has a watch which does nothing: only its callers are of
// interest.
func unwatched() *Watcher {
	return &Watcher{
		interval: time.Second,
		current:  &watch{changed: make(chan struct{}, 1)},
	}
}

// TestWatcher_WaitEndsWithWhatComesFirst: a task, a failure, or the end of the context.
func TestWatcher_WaitEndsWithWhatComesFirst(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		happens func(w *Watcher)
		err     error
		after   time.Duration
	}{
		"it fails":         {func(w *Watcher) { w.fail(w.current, broken) }, broken, 0},
		"a task is due":    {func(w *Watcher) { w.tellNext() }, nil, 0},
		"the context ends": {func(*Watcher) {}, context.DeadlineExceeded, time.Minute - time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				w, start := unwatched(), time.Now().Add(time.Millisecond)
				time.AfterFunc(time.Millisecond, func() { c.happens(w) }) // when the caller waits
				require.ErrorIs(t, w.Wait(ctx, time.Second), c.err)
				require.Equal(t, c.after, time.Since(start))
				synctest.Wait()
				require.Empty(t, w.waiters)
			})
		})
	}
}

// What a caller was told whose context has ended at the same time, another one is told.
func TestWatcher_PassesOnWhatACallerMakesNoUseOf(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	passed := 0
	for range 200 {
		w := unwatched()
		first, second := make(waiter, 1), make(waiter, 1)
		w.enter(first, time.Second)
		w.enter(second, time.Second)
		w.tellNext()
		require.Len(t, first, 1)
		require.Empty(t, second)
		if err := w.await(ended, first); err == nil {
			require.Empty(t, second)
			continue
		}
		passed++
		require.Len(t, second, 1)
		require.Empty(t, w.waiters)
	}
	require.Positive(t, passed)
}

// TestWatcher_WhoSeesToTheHead: the watchman, and a client that is in no line. Others are told.
func TestWatcher_WhoSeesToTheHead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const off = 100 * time.Millisecond
		now, mark := time.Now(), notify.Mark{Confirmed: true}
		due := now.Add(off + clockMargin)
		for place, askAt := range map[store.Place]time.Time{
			store.NotAsked: due, store.Out: due, store.InLine: {}, store.Joined: {}, store.Watchman: due, store.JoinedAsWatchman: due,
		} {
			claimed, looked := unwatched(), unwatched()
			claimed.Claimed(mark, now, store.Head{Off: off, Place: place}, false)
			require.False(t, looked.takeLook(lookResult{store.Head{Off: off, Place: place}, mark, now}))
			for _, w := range []*Watcher{claimed, looked} {
				require.True(t, w.outlook.known, place)
				require.Equal(t, askAt, w.outlook.askAt, place)
				require.Equal(t, max(place, store.Out), w.place)
			}
			far := unwatched()
			far.Claimed(mark, now, store.Head{Off: store.FarOff, Place: place}, false)
			require.Zero(t, far.outlook.askAt, place)
			claimed.Claimed(mark, now, store.Head{Place: place}, true)
			require.Equal(t, now, claimed.outlook.askAt, "it has got a task, and there are more")
			claimed.Claimed(mark, now, store.Head{Place: place}, false)
			require.False(t, claimed.outlook.known, "the claim has brought none, and says that one is due")
			require.Equal(t, now, claimed.outlook.lookAt)
		}
	})
}

// TestWatcher_ANewWatchmanSeesToTheHead that others saw to before: its claim was slower to say that
// the same head is due, or another one is.
func TestWatcher_ANewWatchmanSeesToTheHead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, mark := unwatched(), notify.Mark{Confirmed: true}
		w.Claimed(mark, time.Now(), store.Head{Off: time.Second, Place: store.InLine}, true)
		require.Zero(t, w.outlook.askAt)
		w.Claimed(mark, time.Now(), store.Head{Off: 2 * time.Second, Place: store.InLine}, true)
		require.Equal(t, dueIn(time.Second, time.Now()), w.outlook.due, "a claim that was carried out later has seen another head, perhaps")
		w.Claimed(mark, time.Now(), store.Head{Off: 2 * time.Second, Place: store.Watchman}, true)
		require.Equal(t, dueIn(2*time.Second, time.Now()), w.outlook.askAt)
		w.Claimed(mark, time.Now(), store.Head{Off: 3 * time.Second, Place: store.Watchman}, true)
		require.Equal(t, dueIn(2*time.Second, time.Now()), w.outlook.askAt)
	})
}

// TestWatcher_AMessageSaysWhatToDo: a client that is told of a due task has left the line, and else
// it is the watchman.
func TestWatcher_AMessageSaysWhatToDo(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for message, want := range map[string]struct {
		off     time.Duration
		callers int
		place   store.Place
	}{
		"0 1":                {0, 1, store.Out},
		"0 250":              {0, 250, store.Out},
		"1500 1":             {1500*time.Microsecond + clockMargin, 1, store.Watchman},
		"999999999999999 1":  {store.FarOff + clockMargin, 1, store.Watchman},
		"":                   {0, 1, store.Out},
		"x":                  {0, 1, store.Out},
		"-3 1":               {0, 1, store.Out},
		"0 -5":               {0, 1, store.Out},
		"0 1 and what comes": {0, 1, store.Out},
	} {
		rdb := redistest.Mini(t).Client(t)
		client, q := newClient(rdb, scripts), queueNamed(redistest.Name(t))
		w := client.Watcher(q, time.Minute)
		listener := client.Notifier.Join(w.channel, w.heard)
		require.Eventually(t, func() bool { return w.Mark().Confirmed }, time.Minute, time.Millisecond)
		w.Claimed(w.Mark(), now, store.Head{Off: store.FarOff, Place: store.NotAsked}, false)
		w.mu.Lock()
		w.place = store.InLine
		w.mu.Unlock()
		require.NoError(t, rdb.Publish(t.Context(), w.channel, message).Err())
		require.Eventually(t, func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.place == want.place && !w.outlook.askAt.IsZero()
		}, time.Minute, time.Millisecond, message)
		require.Equal(t, w.outlook.mark.At.Add(want.off), w.outlook.askAt, message)
		require.Equal(t, want.callers, w.outlook.callers, message)
		client.Notifier.Leave(w.channel, listener)
	}
}

// TestWatcher_ALookSaysWhetherAMessageWasLost: the client is not in line where it was. Then its
// connection is checked.
func TestWatcher_ALookSaysWhetherAMessageWasLost(t *testing.T) {
	t.Parallel()
	mark := notify.Mark{Confirmed: true}
	for before, found := range map[store.Place]map[store.Place]bool{
		store.Out:      {store.Joined: false, store.JoinedAsWatchman: false, store.Out: false, store.InLine: false},
		store.InLine:   {store.Joined: true, store.JoinedAsWatchman: true, store.Out: false, store.InLine: false, store.Watchman: false},
		store.Watchman: {store.Joined: true, store.InLine: false, store.Watchman: false, store.NotAsked: false},
	} {
		for now, missed := range found {
			w := unwatched()
			w.place = before
			require.Equal(t, missed, w.takeLook(lookResult{store.Head{Off: store.FarOff, Place: now}, mark, time.Now()}), "%d, then %d", before, now)
		}
	}
}

// TestWatcher_LooksMoreRarelyAmongMany clients, and at another time than those with which it joins,
// or was held up by the server.
func TestWatcher_LooksMoreRarelyAmongMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for clients, every := range map[int]time.Duration{
			0: time.Second, 1: time.Second, 100: time.Second, 150: 1500 * time.Millisecond, 300: 3 * time.Second, 100_000: 3 * time.Second,
		} {
			for what, first := range map[string]struct {
				failed bool
				place  store.Place
				took   time.Duration
			}{"joined": {place: store.Joined}, "slow": {place: store.InLine, took: 501 * time.Millisecond}, "failed": {true, store.InLine, 0}} {
				at := map[time.Duration]int{}
				for range 1000 {
					w := unwatched()
					w.failed = first.failed
					w.takeLook(lookResult{store.Head{Off: store.FarOff, Waiting: clients, Place: first.place}, notify.Mark{}, time.Now().Add(-first.took)})
					at[time.Until(w.outlook.lookAt)*4/(every+1)]++
					w.takeLook(lookResult{store.Head{Off: store.FarOff, Waiting: clients, Place: store.InLine}, notify.Mark{}, time.Now()})
					require.Equal(t, every, time.Until(w.outlook.lookAt), clients)
				}
				for quarter := range time.Duration(4) {
					require.InDelta(t, 250, at[quarter], 75, "%s, %d clients, quarter %d", what, clients, quarter)
				}
			}
		}
	})
}

// TestWatcher_IsAloneForAWhile: a watch outlives its last caller by passOnAfter. If it is in line
// then, or a caller was told that has claimed nothing, others see to the head.
func TestWatcher_IsAloneForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			place store.Place
			told  bool
			asks  bool
			soon  action
			later action
		}{
			{store.Out, false, false, waitForCaller, end},
			{store.Out, true, false, waitForCaller, passOn},
			{store.InLine, true, false, waitForCaller, passOn},
			{store.Watchman, false, true, waitForCaller, passOn}, // it may have claimed just now, and have room for more
		} {
			w := unwatched()
			w.place, w.told, w.aloneSince = c.place, c.told, time.Now()
			if c.asks {
				w.outlook = outlook{known: true, askAt: time.Now()}
			}
			at := fmt.Sprintf("%+v", c)
			o, act := w.next(w.current)
			require.Equal(t, c.soon, act, at)
			if act == waitForCaller {
				require.Equal(t, w.aloneSince.Add(passOnAfter), o.lookAt, at)
			}
			time.Sleep(passOnAfter)
			_, act = w.next(w.current)
			require.Equal(t, c.later, act, at)
			require.Equal(t, store.Out, w.place)
			require.False(t, w.told)
		}
		for askAt, leaves := range map[time.Duration]time.Duration{0: leaveAfter, time.Second: time.Second, 2 * leaveAfter: leaveAfter} {
			w := unwatched()
			w.place, w.aloneSince = store.InLine, time.Now()
			if askAt > 0 {
				w.place, w.outlook = store.Watchman, outlook{known: true, askAt: time.Now().Add(askAt)}
			}
			time.Sleep(leaves - 1)
			_, act := w.next(w.current)
			require.Equal(t, waitForCaller, act)
			time.Sleep(time.Nanosecond)
			_, act = w.next(w.current)
			require.Equal(t, passOn, act)
		}
	})
}

// len returns how many values are known.
func (m *weakMap[K, V]) len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.values)
}

// TestClient_SharesWatchers: one for a queue, as long as it is in use.
func TestClient_SharesWatchers(t *testing.T) {
	t.Parallel()
	client := newClient(redistest.Mini(t).Client(t), scripts)
	w := client.Watcher(queueNamed("a"), time.Minute)
	require.Same(t, w, client.Watcher(queueNamed("a"), time.Second))
	require.NotSame(t, w, client.Watcher(queueNamed("b"), time.Second))
	require.Eventually(t, func() bool {
		runtime.GC()
		return client.watchers.len() == 1
	}, time.Minute, time.Millisecond)
	runtime.KeepAlive(w)
}

// What was told after a claim or a look was sent is newer than their replies; and what came
// over another subscription is not known to be complete.
func TestWatcher_WhatWasToldMeanwhileCounts(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	client := newClient(rdb, scripts)
	w := client.Watcher(queueNamed(redistest.Name(t)), time.Minute)
	defer client.Notifier.Leave(w.channel, client.Notifier.Join(w.channel, nil))
	require.Eventually(t, func() bool { return w.Mark().Confirmed }, time.Minute, time.Millisecond)
	before := w.Mark()
	require.NoError(t, rdb.Publish(t.Context(), w.channel, "0 1").Err())
	require.Eventually(t, func() bool { return w.Mark().Since(before) == 1 }, time.Minute, time.Millisecond)
	after, sent := w.Mark(), time.Now()
	far := store.Head{Off: store.FarOff, Place: store.InLine}
	w.current = &watch{changed: make(chan struct{}, 1)} // which does nothing
	told := func() (o outlook) {
		w.outlook, w.place, w.unsure = outlook{mark: before}, store.InLine, false
		require.True(t, w.heard(after))
		require.True(t, w.outlook.known)
		require.Equal(t, store.Out, w.place)
		return w.outlook
	}

	o := told()
	w.Claimed(before, sent, far, false)
	require.Equal(t, o, w.outlook, "a claim")
	require.True(t, w.unsure, "it may have joined before it was told, or after")
	w.Claimed(after, sent, far, false)
	require.False(t, w.unsure)
	require.True(t, w.outlook.askAt.IsZero(), "a claim that was sent later")
	require.Equal(t, store.InLine, w.place)

	o = told()
	w.Claimed(notify.Mark{}, sent, far, false)
	require.Equal(t, o, w.outlook, "a claim before there was a subscription")

	told()
	w.Claimed(before, sent, store.Head{Place: store.Out}, true)
	require.Equal(t, after, w.outlook.mark, "it is not heard twice")

	o = told()
	require.False(t, w.takeLook(lookResult{far, before, sent}))
	o.lookAt = sent.Add(time.Minute)
	require.Equal(t, o, w.outlook, "a look")

	told() // and it has told a caller
	w.outlook.known, w.outlook.lookAt = false, sent.Add(passOnAfter)
	o = w.outlook
	require.False(t, w.takeLook(lookResult{far, before, sent}))
	require.Equal(t, o, w.outlook, "it is looked for again soon, in case that this caller does nothing")

	told()
	w.outlook.mark, w.outlook.askAt = before, time.Time{}
	w.resume()
	require.False(t, w.outlook.askAt.IsZero(), "a new watch")

	told()
	w.outlook.mark = notify.Mark{}
	w.resume()
	require.False(t, w.outlook.known, "a new watch that had another subscription")

	for name, learns := range map[string]func(){
		"a new watch": w.resume, "a watch that is told": func() { w.heard(after); w.notified() },
	} {
		for reply, comes := range map[string]func(){
			"a claim": func() { w.Claimed(before, sent, far, true) },
			"a look":  func() { w.takeLook(lookResult{far, before, sent}) },
		} {
			w.outlook, w.place, w.unsure = outlook{}, store.Out, false // of before there was a subscription
			learns()
			comes()
			require.False(t, w.outlook.known, "%s, and %s that was sent before: it may have seen no task of the message", name, reply)
			require.True(t, w.unsure)
		}
	}
}

// TestWatcher_PollsAsThoseWhoWaitWant: a Queue that only enqueues, or has ended its wait, does not
// count.
func TestWatcher_PollsAsThoseWhoWaitWant(t *testing.T) {
	t.Parallel()
	w := unwatched()
	first, second, third := make(waiter, 1), make(waiter, 1), make(waiter, 1)
	w.enter(first, time.Hour)
	require.Equal(t, time.Hour, w.poll())
	w.enter(second, time.Minute)
	w.enter(third, 2*time.Minute)
	require.Equal(t, time.Minute, w.poll())
	w.tell(3, nil)
	w.enter(first, time.Hour)
	require.Equal(t, time.Hour, w.poll())
}

// TestWatcher_LooksAfterAPopThatWasHeldBack: a look says for how long pause or limits keep the
// others.
func TestWatcher_LooksAfterAPopThatWasHeldBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, isLimited := range []bool{false, true} {
			w := unwatched()
			w.outlook = outlook{known: true, lookAt: time.Now().Add(time.Hour)}
			w.Popped(true, isLimited)
			require.Equal(t, !isLimited, w.outlook.known)
		}
	})
}

// TestWatcher_NotesWhetherACallerMakesUseOfWhatItWasTold: else others are told.
func TestWatcher_NotesWhetherACallerMakesUseOfWhatItWasTold(t *testing.T) {
	t.Parallel()
	client := newClient(redistest.Mini(t).Client(t), scripts)
	synctest.Test(t, func(t *testing.T) {
		w := client.Watcher(queueNamed("q"), time.Second)
		for _, use := range []func(){w.Pops, func() { w.Ask(1, false) }} {
			w.waiters = []waiter{make(waiter, 1)}
			w.tell(1, errors.New("broken"))
			require.False(t, w.told)
			w.waiters = []waiter{make(waiter, 1)}
			w.tell(1, nil)
			require.True(t, w.told)
			use()
			require.False(t, w.told)
		}
		require.Equal(t, time.Now(), w.askedAt)
	})
}

// What the Queues of a client share is forgotten with them.
func TestQueue_WhatIsSharedIsCollected(t *testing.T) {
	registry := NewRegistry(scripts)
	make100 := func() {
		for range 100 {
			rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
			client := registry.ClientOf(rdb)
			for range 2 {
				require.Same(t, client, registry.ClientOf(rdb))
				client.Watcher(queueNamed("q"), time.Second)
			}
			require.NoError(t, rdb.Close())
		}
	}
	make100()
	require.Eventually(t, func() bool {
		runtime.GC()
		return registry.clients.len() < 50
	}, 30*time.Second, 10*time.Millisecond)
}
