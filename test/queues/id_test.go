package queues

import (
	"encoding/base32"
	"encoding/binary"
	"regexp"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestNewID_SortsByItsTime: also among many made at the same time, and after the clock was set
// back.
func TestNewID_SortsByItsTime(t *testing.T) {
	before := time.Now()
	first := sluice.NewID()
	require.Regexp(t, regexp.MustCompile(`^[0-9a-z]{26}$`), first)
	stored, err := base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding).DecodeString(first)
	require.NoError(t, err)
	made := time.UnixMicro(int64(binary.BigEndian.Uint64(stored) >> 8)) //nolint:gosec // 56 bits
	require.WithinDuration(t, before, made, time.Minute)
	ids := []string{first}
	synctest.Test(t, func(*testing.T) { // in which it is the year 2000, and no time passes
		for range 100_000 {
			ids = append(ids, sluice.NewID())
		}
	})
	require.True(t, slices.IsSorted(append(ids, sluice.NewID())))
}

// TestNewID_IsNewEachTime, in any goroutine.
func TestNewID_IsNewEachTime(t *testing.T) {
	t.Parallel()
	var all sync.Map
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for range 10_000 {
				id := sluice.NewID()
				if _, isKnown := all.LoadOrStore(id, true); isKnown {
					t.Error(id)
				}
			}
		})
	}
	group.Wait()
}
