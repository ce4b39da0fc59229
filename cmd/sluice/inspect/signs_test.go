package inspect

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestSigns_SayWhyTasksWait, the worst first, and nothing of a queue that is well.
func TestSigns_SayWhyTasksWait(t *testing.T) {
	t.Parallel()
	full := sluice.Limits{Running: 2}
	for name, test := range map[string]struct {
		stats sluice.Stats
		stuck int64
		want  []Sign
	}{
		"empty":                     {},
		"at work":                   {stats: sluice.Stats{Due: 5, Workers: 1, Waiting: 1, Lateness: time.Second}},
		"nothing due, all at work":  {stats: sluice.Stats{Leased: 5, Workers: 1}},
		"nothing due, no worker":    {stats: sluice.Stats{Scheduled: 5}},
		"no worker":                 {stats: sluice.Stats{Due: 5, Lateness: time.Hour}, want: []Sign{SignNoWorker}},
		"no worker, paused":         {stats: sluice.Stats{Due: 5, Paused: true}, want: []Sign{SignNoWorker, SignPaused}},
		"those that ran are gone":   {stats: sluice.Stats{Due: 5, WorkerSeen: time.Unix(1, 0)}, want: []Sign{SignWorkersGone}},
		"all leases have ended":     {stats: sluice.Stats{Due: 5, Workers: 1, Lateness: time.Hour}, want: []Sign{SignLate}},
		"no room":                   {stats: sluice.Stats{Due: 5, Leased: 5, Workers: 1, Lateness: time.Hour}, want: []Sign{SignNoRoom}},
		"late, though one has room": {stats: sluice.Stats{Due: 5, Workers: 2, Waiting: 1, Lateness: time.Hour}, want: []Sign{SignLate}},
		"paused":                    {stats: sluice.Stats{Due: 5, Workers: 1, Paused: true, Lateness: time.Hour}, want: []Sign{SignPaused}},
		"at its limit":              {stats: sluice.Stats{Due: 5, Workers: 1, Leased: 2, Limits: full, Lateness: time.Hour}, want: []Sign{SignAtLimit}},
		"stuck":                     {stats: sluice.Stats{Due: 5, Leased: 1, Workers: 1}, stuck: 1, want: []Sign{SignStuck, SignNoRoom}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Signs(test.stats, test.stuck)
			require.Equal(t, test.want, got)
			for i, s := range got {
				require.NotEmpty(t, s.String())
				require.Less(t, s, append([]Sign{SignStuck + 1}, got...)[i], "the worst is first")
			}
			require.Equal(t, append(test.want, 0)[0], Worst(got))
		})
	}
}
