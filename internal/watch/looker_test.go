package watch

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/redistest"
)

// empty looks at queues as if there were no task in them.
type empty struct{}

func (empty) Look(queues []Looking) redisexec.Request {
	args := []any{"exists"}
	for _, q := range queues {
		args = append(args, q.Keys[0])
	}
	return redisexec.Request{Args: args, Retry: redisexec.ReadOnly}
}

func (empty) Heads(_ any, n int) ([]Head, error) { return slices.Repeat([]Head{{Off: FarOff}}, n), nil }

// TestLooker_AResultThatIsNotReadBlocksNothing: a watch that has others to do may plan the next
// look before it has read what the last one found.
func TestLooker_AResultThatIsNotReadBlocksNothing(t *testing.T) {
	t.Parallel()
	client := newClient(redistest.Mini(t).Client(t), empty{})
	l, w := &client.looker, &watch{watcher: client.Watcher(Queue{Keys: []any{"q"}}, time.Second), found: make(chan lookResult, 1)}
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
