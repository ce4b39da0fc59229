package distributed

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// record is what a contender tells of a lock, in a pipe that a kill -9 leaves
// intact.
type record struct {
	Event    event
	Name     uint8
	Renewals uint16
	Process  uint32
	Handle   uint64 // tells apart the locks of a process
	Token    uint64 // 0 if it is not known
	Fence    int64  // 0 if there is none
	// From was read after the lock was taken, and Until before a call of Valid
	// that said yes: the lock was held all the time between.
	From, Until time.Duration
}

type event uint8

const (
	held     event = iota // what there is to tell of a lock in the end
	holding               // so far: the process may be killed before the end
	ctxEnded              // a Lock returned because its context ended
	busy                  // a TryLock found it taken
	expired               // a lock was held beyond its deadline
	lost                  // a Lock or Do says that it was too slow, or doesn't know
	revived               // a lock that was not held any more was again
	events
)

func (e event) String() string {
	return [events]string{"held", "holding", "context ended", "busy", "expired", "lost", "revived"}[e]
}

const recordSize = 48

func (rec record) String() string {
	return fmt.Sprintf("%q by process %d (lock %d, fence %d) from %v to %v",
		lockName(rec.Name), rec.Process, rec.Handle, rec.Fence, rec.From, rec.Until)
}

// history is what all contenders recorded.
type history struct {
	mu      sync.Mutex
	records []record // one per lock that was held
	index   map[[2]uint64]int
	counts  [events]int
	handed  int // locks held under the token of the one before
	renewed int
	fenced  int // locks with a fence
}

// add takes what a contender writes until it ends.
func (h *history) add(r io.Reader) {
	p := make([]byte, recordSize)
	for {
		if _, err := io.ReadFull(r, p); err != nil {
			return // killed, half a record or not
		}
		var rec record
		if _, err := binary.Decode(p, binary.LittleEndian, &rec); err != nil {
			panic(err)
		}
		h.mu.Lock()
		h.counts[rec.Event]++
		if rec.Event == held || rec.Event == holding {
			id := [2]uint64{uint64(rec.Process), rec.Handle}
			at, known := h.index[id]
			if !known {
				at = len(h.records)
				h.index[id] = at
				h.records = append(h.records, rec)
			}
			h.records[at] = rec
		}
		h.mu.Unlock()
	}
}

// recorded is how many records there are of each event.
func (h *history) recorded() [events]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts
}

// check returns what is wrong with a history, a line each: two that held a name
// at once, and fences that do not rise in the order of holding.
func (h *history) check() (wrong []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.SortFunc(h.records, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.From, b.From))
	})
	h.handed, h.renewed, h.fenced = 0, 0, 0
	var last record   // of those of the same name, the one that was held longest
	var highest int64 // the last fence of that name
	for i, rec := range h.records {
		if i == 0 || rec.Name != last.Name {
			last, highest = record{Name: rec.Name}, 0
		}
		if rec.From < last.Until {
			wrong = append(wrong, fmt.Sprintf("%v, before the end of %v", rec, last))
		}
		if rec.Fence != 0 {
			h.fenced++
			if rec.Fence <= highest {
				wrong = append(wrong, fmt.Sprintf("%v has a fence that is not above %d", rec, highest))
			}
			highest = max(highest, rec.Fence)
		}
		if rec.Token != 0 && rec.Token == last.Token && rec.Process == last.Process {
			h.handed++
		}
		h.renewed += int(rec.Renewals)
		if rec.Until >= last.Until {
			last = rec
		}
	}
	if n := h.counts[revived]; n > 0 {
		wrong = append(wrong, fmt.Sprintf("%d locks were held again after they were not", n))
	}
	return wrong
}

// TestExclusion_HistoryIsChecked shows the checker what it must find.
func TestExclusion_HistoryIsChecked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		records []record
		wrong   string
	}{
		"one after the other": {[]record{{From: 1, Until: 5}, {From: 5, Until: 9}}, ""},
		"other names":         {[]record{{From: 1, Until: 5, Fence: 9}, {Name: 1, From: 2, Until: 9, Fence: 8}}, ""},
		"recorded twice":      {[]record{{Event: holding, From: 1, Until: 5, Handle: 1}, {From: 1, Until: 7, Handle: 1}}, ""},
		"at once":             {[]record{{From: 1, Until: 5}, {From: 4, Until: 6}}, "before the end"},
		"within":              {[]record{{From: 1, Until: 9}, {From: 2, Until: 3}, {From: 4, Until: 5}}, "before the end"},
		"killed while held":   {[]record{{Event: holding, From: 1, Until: 5}, {From: 4, Until: 6}}, "before the end"},
		"the same fence":      {[]record{{From: 1, Until: 2, Fence: 7}, {From: 3, Until: 4, Fence: 7}}, "fence"},
		"a lower fence":       {[]record{{From: 1, Until: 2, Fence: 7}, {From: 2, Until: 3}, {From: 3, Until: 4, Fence: 6}}, "fence"},
		"held again":          {[]record{{From: 1, Until: 5}, {Event: revived, From: 1, Until: 5}}, "again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &history{index: map[[2]uint64]int{}}
			var recorded bytes.Buffer
			for i, rec := range c.records {
				if rec.Handle == 0 {
					rec.Handle = uint64(100 + i)
				}
				require.NoError(t, binary.Write(&recorded, binary.LittleEndian, rec))
			}
			require.Equal(t, len(c.records)*recordSize, recorded.Len())
			recorded.WriteString("half a record")
			h.add(&recorded)
			wrong := h.check()
			if c.wrong == "" {
				require.Empty(t, wrong)
				return
			}
			require.NotEmpty(t, wrong)
			require.Contains(t, strings.Join(wrong, "\n"), c.wrong)
		})
	}
}
