package distributed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

const (
	shelf      = 12 // names of which a basket has 2 to 5
	permits    = 3
	sectionTTL = 300 * time.Millisecond
)

// section is what a process tells of one: when it began, and at the end until when it held
// what it needs. What was killed has told its beginning only.
type section struct {
	process, id int
	from, until time.Duration // until was read before a call of Valid that said yes
	fence       int64
	names       []string
}

// write tells the parent, in one piece.
func (s section) write() {
	line := fmt.Sprintf("%d %d %d %d %d %s\n", s.process, s.id, s.from, s.until, s.fence, strings.Join(s.names, ","))
	if _, err := os.Stdout.WriteString(line); err != nil {
		panic(err)
	}
}

// unlocker is a Lock or a LockSet.
type unlocker interface {
	Valid() bool
	Unlock(ctx context.Context) error
}

var (
	_ = systest.Role("basket", func(settings string) {
		workSections(settings, func(ctx context.Context, l *sluice.Locker, s *section) (unlocker, error) {
			for _, i := range rand.Perm(shelf)[:2+rand.IntN(4)] {
				s.names = append(s.names, fmt.Sprint("item-", i))
			}
			return l.LockAll(ctx, s.names)
		})
	})
	_ = systest.Role("permit", func(settings string) {
		workSections(settings, func(ctx context.Context, l *sluice.Locker, s *section) (unlocker, error) {
			s.names = []string{"permit"}
			k, err := l.Lock(ctx, "permit", sluice.WithPermits(permits), sluice.WithFencing(), sluice.WithAutoRenew())
			if err == nil {
				s.fence = k.Fence()
			}
			return k, err
		})
	})
)

// workSections runs sections in 20 goroutines until its standard input ends. Some last for longer than the
// TTL. Its settings are "ADDR PROCESS".
func workSections(settings string, take func(ctx context.Context, l *sluice.Locker, s *section) (unlocker, error)) {
	var addr string
	var process int
	if _, err := fmt.Sscan(settings, &addr, &process); err != nil {
		panic(err)
	}
	l, err := sluice.NewLocker(redis.NewClient(&redis.Options{Addr: addr}), sluice.WithTTL(sectionTTL))
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var ids atomic.Int64
	for range 20 {
		all.Go(func() {
			for ctx.Err() == nil {
				s := section{process: process, id: int(ids.Add(1))}
				u, err := take(ctx, l, &s)
				switch {
				case err == nil:
					s.run(u)
				case ctx.Err() == nil && !errors.Is(err, sluice.ErrLost) && !errors.Is(err, sluice.ErrUnknown):
					panic(err)
				}
			}
		})
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	all.Wait()
	if err := l.Close(); err != nil && !errors.Is(err, sluice.ErrUnknown) {
		panic(err)
	}
}

// run holds for a moment, and then lets go.
func (s *section) run(u unlocker) {
	defer func() { _ = u.Unlock(context.Background()) }()
	s.from = monotonic()
	if !u.Valid() {
		return
	}
	s.until = s.from
	s.write()
	pause := rand.N(2 * time.Millisecond)
	if rand.IntN(200) == 0 {
		pause = sectionTTL + rand.N(sectionTTL) // it has to be renewed
	}
	time.Sleep(pause) // the section
	if now := monotonic(); u.Valid() {
		s.until = now
		s.write()
	}
}

// TestBaskets_BetweenProcesses: three processes take baskets of 2 to 5 of 12 names, and are killed
// now and then. None waits for ever, and no name is in two baskets at a time. For 2,400 baskets:
// SLUICE_TEST_SCALE=4.
func TestBaskets_BetweenProcesses(t *testing.T) {
	// Not parallel: it takes all that the machine has.
	sections, _ := runSections(t, "basket", 600*systest.Scale(), 6)
	byName := map[string][]section{}
	for _, s := range sections {
		for _, name := range s.names {
			byName[name] = append(byName[name], s)
		}
	}
	require.Len(t, byName, shelf)
	for name, of := range byName {
		require.LessOrEqual(t, atOnce(of), 1, name)
	}
}

// TestPermits_BetweenProcesses: of the sections of three processes, some of which are killed, three
// run at a time at most. Each has a fence of its own, and no process is left out.
func TestPermits_BetweenProcesses(t *testing.T) {
	// Not parallel: it takes all that the machine has.
	sections, commands := runSections(t, "permit", 1000*systest.Scale(), 6)
	require.LessOrEqual(t, atOnce(sections), permits)
	fences, of := map[int64]bool{}, map[int]int{}
	for _, s := range sections {
		require.Positive(t, s.fence)
		require.False(t, fences[s.fence], "fence %d twice", s.fence)
		fences[s.fence] = true
		of[s.process%3]++
	}
	t.Logf("sections of each place %v, %.1f commands a section", of, float64(commands)/float64(len(sections)))
	for place := range 3 {
		require.Greater(t, of[place], 10, "%v", of)
	}
}

// runSections has three processes of a role work until they have had so many sections, and so many
// of them were killed. It returns the sections, and how many commands the server has run, those
// within scripts too.
func runSections(t *testing.T, role string, n, kills int) (sections []section, commands int) {
	t.Helper()
	s := redistest.Start(t)
	told := &sectionsTold{last: map[[2]int]section{}}
	var readers sync.WaitGroup
	started, killed := 0, 0
	begin := func(place int) *systest.Child {
		process := place + 3*started
		started++
		child := systest.StartChild(t, role, s.Addr, process)
		readers.Go(func() { told.read(child.Stdout) })
		return child
	}
	running := []*systest.Child{begin(0), begin(1), begin(2)}
	start, before, late := time.Now(), 0, 0
	for told.count() < n || killed < kills || told.least() <= 10 {
		if told.count() >= n && killed >= kills { // a busy machine starts a process late
			late++
			require.Less(t, late, 30, "a process is left out")
			time.Sleep(time.Second) // until it has had its turns
			continue
		}
		time.Sleep(300*time.Millisecond + rand.N(400*time.Millisecond)) // they work
		place := rand.IntN(len(running))
		running[place].Kill()
		running[place] = begin(place)
		killed++
		if killed%40 == 0 { // a kill costs what was held for a TTL; nothing stands still for longer
			require.Greater(t, told.count(), before, "none has gone on for 40 kills")
			before = told.count()
		}
	}
	took := time.Since(start)
	for _, child := range running {
		require.NoError(t, child.Close())
	}
	readers.Wait()
	for _, one := range told.last {
		sections = append(sections, one)
	}
	info, err := s.Client(t).InfoMap(t.Context(), "stats").Result()
	require.NoError(t, err)
	_, err = fmt.Sscan(info["Stats"]["total_commands_processed"], &commands)
	require.NoError(t, err)
	t.Logf("%d sections in %v, %.0f/s, %d kills", len(sections), took.Round(time.Millisecond), float64(len(sections))/took.Seconds(), killed)
	return sections, commands
}

// sectionsTold is what the processes have told.
type sectionsTold struct {
	mu   sync.Mutex // guards last
	last map[[2]int]section
}

func (a *sectionsTold) read(from *bufio.Reader) {
	for lines := bufio.NewScanner(from); lines.Scan(); {
		var s section
		var names string
		if _, err := fmt.Sscan(lines.Text(), &s.process, &s.id, &s.from, &s.until, &s.fence, &names); err != nil {
			continue // cut off by a kill
		}
		s.names = strings.Split(names, ",")
		a.mu.Lock()
		a.last[[2]int{s.process, s.id}] = s
		a.mu.Unlock()
	}
}

func (a *sectionsTold) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.last)
}

// least returns how many sections the processes of one place have had, at the least.
func (a *sectionsTold) least() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	var of [3]int
	for key := range a.last {
		of[key[0]%3]++
	}
	return slices.Min(of[:])
}

// atOnce returns how many of the sections ran at the same time, at most.
func atOnce(sections []section) int {
	var spans []systest.Span
	for _, s := range sections {
		spans = append(spans, systest.Span{From: int64(s.from), Until: int64(s.until)})
	}
	return systest.AtOnce(spans)
}
