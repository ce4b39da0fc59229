package store

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestExchange_RemembersWhileAGroupIsMet: another call learns that the queue has groups, or units, at any moment.
// What is to be remembered goes with the keys that have it.
func TestExchange_RemembersWhileAGroupIsMet(t *testing.T) {
	t.Parallel()
	scripts, items := Load(os.DirFS("../../lua")), make([]Item, 250)
	for range 20_000 {
		q := NewQueue(scripts, "q", QueueOptions{Retention: time.Hour})
		var met sync.WaitGroup
		met.Go(q.SetHolds)
		r := q.Exchange(items, Claim{})
		met.Wait()
		require.GreaterOrEqual(t, r.Args[2], len(q.done))
	}
}
