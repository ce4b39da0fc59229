package watch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/store"
)

// TestWatcher_AsksForAPlace in its claims: if it has room when they are answered, or callers that
// wait.
func TestWatcher_AsksForAPlace(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	client := newClient(rdb, scripts)
	w := client.Watcher(queueNamed(redistest.Name(t)), time.Second)
	require.Equal(t, store.Asking{Below: 0}, w.Ask(5, true), "it is not subscribed: nothing could tell it")
	defer client.Notifier.Leave(w.channel, client.Notifier.Join(w.channel, nil))
	require.Eventually(t, func() bool { return w.Mark().Confirmed }, time.Minute, time.Millisecond)
	ask := func(place store.Place, waiters int, keepsRoom bool) int {
		w.place, w.waiters = place, make([]waiter, waiters)
		a := w.Ask(5, keepsRoom)
		require.Equal(t, a.Below != 0, a.Client != "")
		require.Equal(t, a.Below != 0, a.Watch == 2*time.Second)
		return a.Below
	}
	require.Equal(t, 1, ask(store.Out, 0, false), "if it claims nothing")
	require.Equal(t, 5, ask(store.Out, 0, true), "if it claims fewer than it has room for")
	require.Equal(t, 6, ask(store.Out, 1, false), "in any case")
	require.Equal(t, -1, ask(store.InLine, 0, false), "else it leaves the line")
	require.Equal(t, -5, ask(store.Watchman, 0, true))
	require.Equal(t, -6, ask(store.InLine, 1, true), "it stays where it is")
}

// TestWatcher_MakesSureOfItsPlace while callers wait, and as soon as one does: it may have left the
// line after a claim has joined it.
func TestWatcher_MakesSureOfItsPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mark := notify.Mark{Confirmed: true}
		trusts := func(place store.Place, askIn time.Duration) *Watcher {
			w := unwatched()
			w.place, w.outlook = place, outlook{known: true, due: time.Now().Add(askIn)}
			if askIn > 0 {
				w.outlook.askAt = w.outlook.due
			}
			return w
		}
		for place, unsure := range map[store.Place]bool{store.Out: false, store.InLine: true, store.Watchman: true} {
			w := trusts(place, 0)
			w.left()
			require.Equal(t, unsure, w.unsure)
			require.True(t, w.outlook.known, "no caller waits")
			w.enter(make(waiter, 1), time.Second)
			require.False(t, w.outlook.known)
			w = trusts(place, 0)
			w.enter(make(waiter, 1), time.Second)
			require.Equal(t, unsure, w.outlook.known)
			w.outlook.known = true
			w.left()
			require.False(t, w.outlook.known)
		}
		for askIn, known := range map[time.Duration]bool{firstPause: true, 2 * firstPause: false} {
			w := trusts(store.Out, askIn)
			w.enter(make(waiter, 1), time.Second)
			require.Equal(t, known, w.outlook.known, askIn)
		}

		w := trusts(store.Out, 0)
		w.waiters = make([]waiter, 1)
		w.Claimed(mark, time.Now(), store.Head{Off: store.FarOff, Place: store.InLine}, false)
		require.True(t, w.outlook.known)
		w.Claimed(mark, time.Now(), store.Head{Off: store.FarOff, Place: store.Out}, false)
		require.False(t, w.outlook.known, "the claim has left the line")
		w.waiters, w.leftAt = nil, time.Now()
		w.Claimed(mark, time.Now().Add(-1), store.Head{Off: store.FarOff, Place: store.InLine}, false)
		require.True(t, w.unsure, "it may have joined before the client left")
		w.Claimed(mark, time.Now(), store.Head{Off: store.FarOff, Place: store.InLine}, false)
		require.False(t, w.unsure)
	})
}

// TestWatcher_LooksAnewAfterItHasPassedOn: what it knew was known in line, which it leaves.
func TestWatcher_LooksAnewAfterItHasPassedOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := unwatched()
		w.place, w.aloneSince = store.InLine, time.Now()
		w.outlook = outlook{known: true, lookAt: time.Now().Add(time.Hour)}
		later := time.Now().Add(time.Hour)
		_, what := w.alone(later)
		require.Equal(t, passOn, what)
		require.False(t, w.outlook.known)
		require.Equal(t, store.Out, w.place)
	})
}
