package queues

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/store"
)

// TestQueue_ClaimReturnsTheLastReceiptOfAnID: a server whose clock is set forward in the
// middle of a Claim hands out again what the same Claim has.
func TestQueue_ClaimReturnsTheLastReceiptOfAnID(t *testing.T) {
	t.Parallel()
	c := claiming{lease: time.Minute}
	c.add(time.Now().Add(-time.Minute), time.Now().Add(-time.Minute), []store.Task{{ID: "late", Score: 1}, {ID: "a", Score: 1}})
	c.add(time.Now(), time.Now(), []store.Task{{ID: "a", Score: 2}, {ID: "b", Score: 2}})
	c.add(time.Now(), time.Now(), []store.Task{{ID: "c", Score: 3}, {ID: "a", Score: 3}})
	valid, late := c.sort()
	require.Equal(t, []store.Task{{ID: "b", Score: 2}, {ID: "c", Score: 3}, {ID: "a", Score: 3}}, valid)
	require.Equal(t, []store.Task{{ID: "late", Score: 1}}, late)
}
