package distributed

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// seconds is a time as the server's scores have it.
func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// stretch is from when until when something was, by the clock that the server has too.
type stretch struct{ from, to float64 }

// stalls are the times in which a busy machine has not let this process run, and so most likely not
// the others: nothing can be handed out then.
type stalls struct {
	mu   sync.Mutex // guards what follows
	all  []stretch
	late []float64 // by how many ms each nap was too long
}

// watchStalls watches until the test ends.
func watchStalls(t *testing.T) *stalls {
	const nap = 2 * time.Millisecond
	var s stalls
	untilEnd(t, func(context.Context) {
		until := time.Now().Add(nap)
		time.Sleep(nap) // how long it takes is what is measured
		late := time.Since(until)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.late = append(s.late, late.Seconds()*1e3)
		if late > nap {
			s.all = append(s.all, stretch{seconds(until), seconds(until.Add(late))})
		}
	})
	return &s
}

// lag returns the 99th percentile of how late the machine woke this process, in ms.
func (s *stalls) lag() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return threeOf(s.late)[1]
}

// without returns how many seconds of a stretch are left.
func (s *stalls) without(in stretch) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := in.to - in.from
	for _, one := range s.all {
		left -= max(min(one.to, in.to)-max(one.from, in.from), 0)
	}
	return max(left, 0)
}

// leaseLog is what the server wrote to the leased tasks of a queue: each lease is of limitedLease,
// and so its end tells when the task was handed out, also to a process that has not lived to see
// it.
type leaseLog struct {
	handedOut []float64          // when
	ends      map[string]float64 // of the leases that live
	mostLive  int
	places    int       // Limits.Running
	finished  []float64 // when tasks were whose places are not used again
	ranOut    []float64 // when leases have, since all places were used
	// From when a place was free until it was used again. After a finish the next hand-out uses it.
	// After a lease has run out, that is until all places are used.
	afterFinish, afterLease []stretch
}

func newLeaseLog(l sluice.Limits) *leaseLog {
	return &leaseLog{ends: map[string]float64{}, places: l.Running}
}

// add adds a command, if it wrote to the queue's leases. at is when it was carried out, 0 if that
// is not known.
func (l *leaseLog) add(queue string, command []string, at float64) {
	if len(command) < 3 {
		return
	}
	switch name := strings.ToUpper(command[0]); {
	case name == "ZREM" && command[1] == "{Queue:"+queue+"}:leased":
		l.runOut(at)
		for _, id := range command[2:] {
			if _, lives := l.ends[id]; lives {
				l.finished = append(l.finished, at)
			}
			delete(l.ends, id)
		}
	case name == "HSET" && command[1] == "{Queue:"+queue+"}:state":
		for i := 2; i < len(command); i += 2 {
			if field := strings.Split(command[i+1], ":"); len(field) >= 3 {
				l.lease(command[i], field[1])
			}
		}
	}
}

// lease adds a lease as the state field of a task has it: its end and, once it was extended, '/'
// and the receipt.
func (l *leaseLog) lease(id, field string) {
	until, _, extended := strings.Cut(field, "/")
	end, err := strconv.ParseFloat(until, 64)
	switch {
	case err != nil: // there is none
	case extended:
		l.ends[id] = end
	default:
		l.handOut(id, end)
	}
}

func (l *leaseLog) handOut(id string, end float64) {
	at := end - limitedLease.Seconds()
	l.runOut(at)
	l.handedOut = append(l.handedOut, at)
	l.ends[id] = end
	l.mostLive = max(l.mostLive, len(l.ends))
	if len(l.finished) > 0 {
		l.afterFinish = append(l.afterFinish, stretch{l.finished[0], at})
		l.finished = l.finished[1:]
	}
	if len(l.ends) == l.places {
		for _, since := range l.ranOut {
			l.afterLease = append(l.afterLease, stretch{since, at})
		}
		l.ranOut = nil
	}
}

// runOut ends the leases that have run out by then.
func (l *leaseLog) runOut(by float64) {
	for id, end := range l.ends {
		if end <= by {
			delete(l.ends, id)
			l.ranOut = append(l.ranOut, end)
		}
	}
}

// forget forgets the leases that live: what follows is not known.
func (l *leaseLog) forget() {
	clear(l.ends)
	l.finished, l.ranOut = nil, nil
}

// readLeaseLogs reads an append-only file.
func readLeaseLogs(commands [][]string) map[string]*leaseLog {
	logs := map[string]*leaseLog{}
	for name, limits := range limitedQueues {
		logs[name] = newLeaseLog(limits)
		for _, c := range commands {
			logs[name].add(name, c, 0)
		}
	}
	return logs
}

// monitor adds what a server carries out to logs, with its times, until stop is called or the
// server is killed. It knows nothing of leases from before.
func monitor(t *testing.T, s *redistest.Server, logs map[string]*leaseLog) (stop func()) {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr)
	require.NoError(t, err)
	_, err = fmt.Fprint(conn, "MONITOR\r\n")
	require.NoError(t, err)
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 1<<20)
	require.True(t, lines.Scan())
	require.Equal(t, "+OK", lines.Text())
	for _, l := range logs {
		l.forget()
	}
	ended := make(chan struct{})
	go func() { // it ends with the connection; stop waits for it
		defer close(ended)
		for lines.Scan() {
			at, command, _ := strings.Cut(strings.TrimPrefix(lines.Text(), "+"), " ")
			_, command, _ = strings.Cut(command, "] ")
			words := strings.Split(strings.Trim(command, `"`), `" "`)
			began, _ := strconv.ParseFloat(at, 64)
			for name, l := range logs {
				l.add(name, words, began)
			}
		}
	}()
	return func() {
		_ = conn.Close()
		<-ended
	}
}

// requireRate checks hand-outs: by the generic cell rate algorithm there were never more than Burst
// and what Rate lets go since, whatever the time is looked at, and so in none of Per more than
// both; and in a stretch without trouble hardly fewer than Rate.
func requireRate(t *testing.T, handedOut []float64, l sluice.Limits, calms []stretch, s *stalls, ofRate float64) {
	t.Helper()
	const margin = 2e-6 // what doubles and whole microseconds lose
	per := l.Per.Seconds()
	every, spent, most := per/float64(l.Rate), 0.0, 0
	for i, at := range handedOut {
		spent = max(spent, at) + every
		require.LessOrEqual(t, spent-at, float64(l.Burst)*every+float64(i+1)*1e-8+margin, "hand-out %d is early", i)
		first, _ := slices.BinarySearch(handedOut[:i+1], at-per+margin)
		most = max(most, i+1-first)
	}
	require.LessOrEqual(t, most, l.Rate+l.Burst)
	require.True(t, slices.IsSorted(handedOut))
	var reached, lessStalls []float64
	for _, c := range calms {
		from, _ := slices.BinarySearch(handedOut, c.from)
		to, _ := slices.BinarySearch(handedOut, c.to)
		seconds := float64(to-from) * every // so many hand-outs take, at the rate
		reached, lessStalls = append(reached, seconds/(c.to-c.from)), append(lessStalls, seconds/s.without(c))
	}
	t.Logf("  at most %d in %v; of the rate in stretches without trouble: %.3f, of the time without stalls %.3f", most, l.Per, reached, lessStalls)
	require.GreaterOrEqual(t, slices.Min(lessStalls), ofRate)
}

// within returns those of some stretches that are in one of others.
func within(others, some []stretch) []stretch {
	return slices.DeleteFunc(slices.Clone(some), func(s stretch) bool {
		return !slices.ContainsFunc(others, func(o stretch) bool { return o.from <= s.from && s.to <= o.to })
	})
}

// quantiles returns what threeOf does of some stretches without stalls, in ms.
func (s *stalls) quantiles(some []stretch) []float64 {
	var times []float64
	for _, one := range some {
		times = append(times, s.without(one)*1e3)
	}
	return threeOf(times)
}

// threeOf returns the median, the 99th percentile and the most.
func threeOf(times []float64) []float64 {
	if len(times) == 0 {
		return []float64{0, 0, 0}
	}
	times = slices.Sorted(slices.Values(times))
	return []float64{times[len(times)/2], times[len(times)*99/100], times[len(times)-1]}
}
