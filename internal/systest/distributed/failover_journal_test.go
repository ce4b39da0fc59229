package distributed

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/systest"
)

// journalLease is how long the processes lease tasks that keep a journal: long enough that a busy
// machine does not let one end, and, in larger tests, that the move of a large key does not. Parent
// and children have the same environment.
var journalLease = min(10*time.Second*time.Duration(systest.Scale()), 20*time.Second)

// note is what a process wrote down of a task.
type note struct {
	Kind, Task int64
	At         int64 // microseconds of the machine's clock, which is the servers' too
	LeaseEnd   int64 // of the receipt, in microseconds
}

// clock is how times are printed.
const clock = "04:05.000"

// noteSize divides a page: so a process that is killed leaves no half of a note.
const noteSize = 32

// The kinds of notes.
const (
	begun = iota // the handler was called
	done         // the handler is about to return
)

// journal is the file to which a process appends notes. They outlive the process, however it ends.
type journal struct{ file *os.File }

func openJournal(path string) (journal, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return journal{file}, err
}

// add appends a note. leaseEnd is the score of a receipt.
func (j journal) add(kind, task int64, leaseEnd float64) {
	n := note{kind, task, time.Now().UnixMicro(), int64(leaseEnd * 1e6)}
	var b [noteSize]byte
	_, err := binary.Encode(b[:], binary.LittleEndian, n)
	if err == nil {
		_, err = j.file.Write(b[:])
	}
	if err != nil {
		panic(err)
	}
}

func decodeNotes(content []byte) ([]note, error) {
	if len(content)%noteSize != 0 {
		return nil, errors.New("the journal ends within a note")
	}
	notes := make([]note, len(content)/noteSize)
	_, err := binary.Decode(content, binary.LittleEndian, notes)
	return notes, err
}

// delivery is a call of a handler.
type delivery struct {
	note
	doneAt int64     // or 0
	killed time.Time // when its process was, or zero
}

// mayComeAgain reports whether the process was killed while it had the task.
func (d delivery) mayComeAgain() bool {
	return !d.killed.IsZero() && !d.killed.After(time.UnixMicro(d.LeaseEnd))
}

// witness is what all journals say.
type witness struct {
	enqueued   map[int64]bool
	deliveries []delivery
	last       time.Time // when the last task was done
}

// add takes the notes of a process, and when it was killed; zero if it was not.
func (w *witness) add(notes []note, killed time.Time) {
	latest := map[int64]int{} // the delivery of a task
	for _, n := range notes {
		switch n.Kind {
		case begun:
			latest[n.Task] = len(w.deliveries)
			w.deliveries = append(w.deliveries, delivery{note: n, killed: killed})
		case done:
			w.deliveries[latest[n.Task]].doneAt = n.At
			if at := time.UnixMicro(n.At); at.After(w.last) {
				w.last = at
			}
		}
	}
}

// verdict is what is wrong, a line each, and how many tasks were handed out again, and done again.
type verdict struct {
	wrong            []string
	lost, foreign    int
	again, doneAgain int
	latest           time.Duration // after the end of the lease before was a task handed out again
}

// check reads all deliveries, task by task.
func (w *witness) check() (v verdict) {
	slices.SortFunc(w.deliveries, func(a, b delivery) int {
		return cmp.Or(cmp.Compare(a.Task, b.Task), cmp.Compare(a.LeaseEnd, b.LeaseEnd))
	})
	v.lost = len(w.enqueued)
	for rest := w.deliveries; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].Task == rest[0].Task {
			n++
		}
		v.task(rest[:n])
		if !w.enqueued[rest[0].Task] {
			v.foreign++
		} else if slices.ContainsFunc(rest[:n], func(d delivery) bool { return d.doneAt > 0 }) {
			v.lost--
		}
		rest = rest[n:]
	}
	if v.lost+v.foreign > 0 {
		v.wrong = append(v.wrong, fmt.Sprintf("%d tasks were lost, and %d handed out that were not enqueued", v.lost, v.foreign))
	}
	return v
}

// task reads the deliveries of one task, in the order of their leases. Each but the first has to
// come after the lease before has ended, and because the process that had it was killed.
func (v *verdict) task(deliveries []delivery) {
	times := 0
	for i, d := range deliveries {
		if d.doneAt > 0 {
			times++
		}
		if i == 0 {
			continue
		}
		before := deliveries[i-1]
		late := time.Duration(d.LeaseEnd-before.LeaseEnd)*time.Microsecond - journalLease
		if late < -2*time.Microsecond { // the scores are rounded
			v.wrong = append(v.wrong, fmt.Sprintf("task %d was handed out again %v before its lease had ended", d.Task, -late))
		}
		if !before.mayComeAgain() {
			v.wrong = append(v.wrong, fmt.Sprintf("task %d was handed out again, and its process was not killed at work: lease from %v to %v, begun %v later, done after %v",
				d.Task, time.UnixMicro(before.LeaseEnd).Add(-journalLease).Format(clock), time.UnixMicro(before.LeaseEnd).Format(clock),
				time.Duration(before.At-before.LeaseEnd)*time.Microsecond+journalLease, time.Duration(before.doneAt-before.At)*time.Microsecond))
		}
		v.again++
		v.latest = max(v.latest, late)
	}
	if times > 1 {
		v.doneAgain++
	}
}

// TestJournal_IsChecked shows the check what it must find.
func TestJournal_IsChecked(t *testing.T) {
	t.Parallel()
	const second = int64(1e6)
	lease := journalLease.Microseconds()
	first := []note{{Kind: begun, Task: 1, LeaseEnd: second}, {Kind: done, Task: 1, At: 1}}
	again := func(leaseEnd int64) []note {
		return []note{{Kind: begun, Task: 1, LeaseEnd: leaseEnd}, {Kind: done, Task: 1, At: 1}}
	}
	for name, c := range map[string]struct {
		first, second []note
		killed        int64 // the first
		wrong         string
	}{
		"done once":                {first: first},
		"killed before it begins":  {second: again(second), killed: second - 1},
		"killed at work":           {first: first[:1], second: again(second + lease), killed: second - 1},
		"killed after it was done": {first: first, second: again(second + lease), killed: second - 1},
		"not handed out":           {wrong: "1 tasks were lost"},
		"not done":                 {first: first[:1], wrong: "1 tasks were lost"},
		"foreign":                  {first: append(first[:2:2], note{Kind: begun, Task: 2}), wrong: "1 handed out that were not enqueued"},
		"too early":                {first: first[:1], second: again(second + lease - 10), killed: second - 1, wrong: "before its lease had ended"},
		"the same receipt":         {first: first, second: again(second), killed: second - 1, wrong: "before its lease had ended"},
		"without a kill":           {first: first, second: again(second + lease), wrong: "was not killed"},
		"killed after the lease":   {first: first, second: again(second + lease), killed: second + 1, wrong: "was not killed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := witness{enqueued: map[int64]bool{1: true}}
			var killed time.Time
			if c.killed != 0 {
				killed = time.UnixMicro(c.killed)
			}
			w.add(throughJournal(t, c.first), killed)
			w.add(throughJournal(t, c.second), time.Time{})
			wrong := strings.Join(w.check().wrong, "\n")
			if c.wrong == "" {
				require.Empty(t, wrong)
				return
			}
			require.Contains(t, wrong, c.wrong)
		})
	}
}

// throughJournal writes notes to a journal, and reads it.
func throughJournal(t *testing.T, notes []note) []note {
	t.Helper()
	var content []byte
	for _, n := range notes {
		var err error
		content, err = binary.Append(content, binary.LittleEndian, n)
		require.NoError(t, err)
	}
	read, err := decodeNotes(content)
	require.NoError(t, err)
	require.Len(t, read, len(notes))
	return read
}
