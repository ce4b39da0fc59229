package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicetest"
)

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out))
	require.Equal(t, 3, strings.Count(out.String(), "done by process "))
}

// TestLocker_EachRunIsDoneOnce: in ten minutes of jobs of each second, by three processes.
func TestLocker_EachRunIsDoneOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := sluicetest.New(t)
		done := make(chan string, 10_000)
		var stops []func()
		for _, name := range []string{"a", "b", "c"} {
			stop, err := Start(r.NewClient(), name, done)
			require.NoError(t, err)
			stops = append(stops, stop)
		}
		time.Sleep(10*time.Minute + 700*time.Millisecond)
		for _, stop := range stops {
			stop()
		}
		require.InDelta(t, 600, len(done), 1)
	})
}

// TestElector_OneLeads: another process does when the first ends, and when its lock was forced
// open.
func TestElector_OneLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := sluicetest.New(t)
		var electors []*Elector
		var ends []context.CancelFunc
		var lockers []*sluice.Locker
		for range 3 {
			locker, err := sluice.NewLocker(r.NewClient())
			require.NoError(t, err)
			ctx, end := context.WithCancel(t.Context())
			electors, ends, lockers = append(electors, NewElector(ctx, locker)), append(ends, end), append(lockers, locker)
			time.Sleep(time.Second)
		}
		leader := func() (at int) {
			at = -1
			for i, e := range electors {
				if e.IsLeader(t.Context()) == nil {
					require.Equal(t, -1, at, "two lead")
					at = i
				}
			}
			return at
		}
		require.Equal(t, 0, leader())
		ends[0]()
		time.Sleep(time.Second)
		require.Equal(t, 1, leader())
		_, err := lockers[1].ForceUnlock(t.Context(), "gocron:leader")
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Equal(t, 2, leader())
		for i, end := range ends {
			end()
			synctest.Wait()
			require.NoError(t, lockers[i].Close())
		}
		time.Sleep(time.Minute)
	})
}
