package sluice

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestQueue_ClaimReturnsTheLastReceiptOfAnID: a server whose clock is set forward in the
// middle of a Claim hands out again what the same Claim has.
func TestQueue_ClaimReturnsTheLastReceiptOfAnID(t *testing.T) {
	t.Parallel()
	c := claiming{lease: time.Minute}
	c.add(time.Now().Add(-time.Minute), time.Now().Add(-time.Minute), []Entry{{ID: "late", Score: 1}, {ID: "a", Score: 1}})
	c.add(time.Now(), time.Now(), []Entry{{ID: "a", Score: 2}, {ID: "b", Score: 2}})
	c.add(time.Now(), time.Now(), []Entry{{ID: "c", Score: 3}, {ID: "a", Score: 3}})
	valid, late := c.sort()
	require.Equal(t, []Entry{{ID: "b", Score: 2}, {ID: "c", Score: 3}, {ID: "a", Score: 3}}, valid)
	require.Equal(t, []Entry{{ID: "late", Score: 1}}, late)
}
