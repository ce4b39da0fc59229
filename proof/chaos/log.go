package main

import (
	"fmt"
	"os"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/sluice-go/sluice/internal/redistest"
)

// evidence is everything that a round has left for its check.
type evidence struct {
	log      []entry
	records  []record
	clock    serverClock
	deaths   map[string]time.Duration // when a process was killed, at the latest
	stops    map[string][]span        // when a process was stopped
	gaps     []span                   // see findGaps
	restarts []restart
	ended    time.Duration
	// listedDone is what the library says is done when everything is quiet; nil in some tests.
	listedDone   map[string]doneTask
	listedStocks map[stockKey]listedStock         // what it says of stocks then
	cleared      time.Duration                    // when the limits of all queues were taken away; 0 if they were not
	since        time.Duration                    // when the first fault struck that did not end
	clients      int                              // how many there were
	gone         map[string]time.Duration         // since when a process does nothing any more, to the others
	waits        waits                            // what check finds; nil without -liveness
	locks        map[string][]porcupine.Operation // what check finds: see histories
}

// entry is a transaction, or a single command, of the log.
type entry struct {
	span
	commands [][]string
	lost     bool // cut off the log later
	// rewind marks a restart instead: the server went on without the lost entries before.
	// Its span is from the decision to kill the server until the server was up again; dead
	// is when it was dead.
	rewind bool
	dead   time.Duration
}

// readLog reads the log of a server with all its restarts, and dates its entries. It also
// returns the ticks that it found.
func readLog(s *server, ended time.Duration) (log []entry, seen map[time.Duration]bool, err error) {
	content, err := os.ReadFile(s.LogFile())
	if err != nil {
		return nil, nil, err
	}
	d := &dating{seen: map[time.Duration]bool{}}
	from := 0
	for _, r := range s.restarts {
		if err := d.add(content[from:r.whole], false); err != nil {
			return nil, nil, err
		}
		if r.tail != "" {
			tail, err := os.ReadFile(r.tail)
			if err == nil {
				err = d.add(tail, true)
			}
			if err != nil {
				return nil, nil, err
			}
		}
		d.log = append(d.log, entry{rewind: true, span: span{r.killed.after, r.up}, dead: r.killed.before})
		from = r.whole
	}
	if err := d.add(content[from:], false); err != nil {
		return nil, nil, err
	}
	return d.log, d.seen, d.date(s.ticks, ended)
}

// dating makes the entries of a log, and dates them by the ticks.
type dating struct {
	log  []entry
	seen map[time.Duration]bool
}

func (d *dating) add(log []byte, lost bool) error {
	var open *entry // the transaction that has not ended
	_, err := redistest.ReadLog(log, func(command []string, _ int) {
		switch {
		case command[0] == "MULTI":
			open = &entry{lost: lost}
		case command[0] == "EXEC" && open != nil:
			d.log = append(d.log, *open)
			open = nil
		case open != nil:
			open.commands = append(open.commands, command)
		default:
			d.log = append(d.log, entry{lost: lost, commands: [][]string{command}})
		}
	})
	if err != nil {
		return fmt.Errorf("append-only file: %w", err)
	}
	return nil
}

// date gives each entry its span: after the sending of the last tick before it, and before
// the reply to the next tick, or the kill, or the end.
func (d *dating) date(answered map[time.Duration]time.Duration, ended time.Duration) error {
	last := time.Duration(0)
	for i := range d.log {
		e := &d.log[i]
		if e.rewind {
			last = max(last, e.after)
			continue
		}
		if sent, ok := e.tick(); ok {
			d.seen[sent] = true
			last = max(last, sent)
		}
		e.after = last
	}
	next := ended
	for i := len(d.log) - 1; i >= 0; i-- {
		e := &d.log[i]
		if e.rewind {
			next = min(next, e.dead)
			continue
		}
		if e.before = next; e.before < e.after {
			return fmt.Errorf("the log contradicts itself: a command sent after %v got its reply before %v", e.after, e.before)
		}
		if sent, ok := e.tick(); ok {
			if at, ok := answered[sent]; ok {
				next = min(next, at)
			}
		}
	}
	return nil
}

func (e *entry) tick() (sent time.Duration, ok bool) {
	if len(e.commands) != 1 {
		return 0, false
	}
	return tickOf(e.commands[0])
}

// findGaps finds ticks that the server acknowledged and that the log does not have: a kill -9
// has lost acknowledged writes. "everysec" allows that when the disk is so slow that Redis
// postpones its writes while it waits for an fsync. Then everything acknowledged since the
// last tick in the log may be lost too. Under that policy it may be lost even if no tick was,
// on a machine where ticks are rare.
func findGaps(answered map[time.Duration]time.Duration, seen map[time.Duration]bool, restarts []restart) (gaps []span) {
	previous := time.Duration(0)
	for _, r := range restarts {
		first, last := time.Duration(1<<62), time.Duration(0)
		for sent, at := range answered {
			if !seen[sent] && sent > previous && at <= r.killed.before {
				first = min(first, sent)
			}
		}
		if r.postponed {
			first = min(first, r.killed.before)
		}
		for sent := range seen {
			if sent < first && answered[sent] <= r.killed.before { // else it was carried out after the kill
				last = max(last, sent)
			}
		}
		if first < 1<<62 {
			gaps = append(gaps, span{last, r.up})
		}
		previous = r.up
	}
	return gaps
}

// inGap says whether a write that was acknowledged within this time may be missing from the
// log.
func (e *evidence) inGap(call, end time.Duration) bool {
	for _, g := range e.gaps {
		if g.meets(call, max(call, end)) {
			return true
		}
	}
	return false
}
