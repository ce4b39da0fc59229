package watch

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/store"
)

var scripts = store.Load(os.DirFS("../../lua"))

func queueNamed(name string) *store.Queue {
	return store.NewQueue(scripts, name, store.QueueOptions{})
}

// TestLooker_AResultThatIsNotReadBlocksNothing: a watch that has others to do may plan the next
// look before it has read what the last one found.
func TestLooker_AResultThatIsNotReadBlocksNothing(t *testing.T) {
	t.Parallel()
	client := newClient(redistest.Mini(t).Client(t), scripts)
	l, w := &client.looker, &watch{watcher: client.Watcher(queueNamed("q"), time.Second), found: make(chan lookResult, 1)}
	for range 3 {
		l.plan(w, time.Now())
		require.Eventually(t, func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return !l.underWay[w] && len(l.planned) == 0 && len(w.found) == 1
		}, time.Minute, time.Millisecond)
	}
	l.cancel(w)
	require.False(t, (<-w.found).head.Failed)
}

// TestLooker_LooksApartForAMinute where a server has refused one script for several queues, as one
// does whose access rules forbid one of them.
func TestLooker_LooksApartForAMinute(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	name := redistest.Name(t)
	client := newClient(rdb, scripts)
	l := &client.looker
	var watches []*watch
	for _, key := range []string{name + "0", name + "1"} {
		watches = append(watches, &watch{watcher: client.Watcher(queueNamed(key), time.Second), found: make(chan lookResult, 1)})
	}
	isApart := func(now time.Time) bool {
		for _, w := range watches {
			l.planned[w] = now
		}
		_, apart, _ := l.due(now)
		return apart
	}
	l.planned, l.underWay = map[*watch]time.Time{}, map[*watch]bool{}
	now := time.Now()
	require.False(t, isApart(now))
	l.lookApart()
	require.True(t, isApart(now.Add(apartFor-time.Second)))
	require.False(t, isApart(now.Add(apartFor+time.Minute)))
}
