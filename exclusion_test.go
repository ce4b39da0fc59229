package sluice_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
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

// There are names for which many stand in line with nothing to do, and names that
// are held for long.
const hotNames, slowNames = 2, 2

// contender is a process of TestExclusion. It takes locks in all ways, and
// records what it held.
type contender struct {
	locker  *sluice.Locker
	process uint32
	handles atomic.Uint64
}

// contend is the role "contender". Its settings are "ADDR PROCESS".
func contend(settings string) {
	var addr string
	c := &contender{}
	if _, err := fmt.Sscan(settings, &addr, &c.process); err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr, Dialer: dialLaggard})
	var err error
	if c.locker, err = sluice.NewLocker(rdb); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i := range 22 {
		all.Go(func() {
			for ctx.Err() == nil {
				if i < 16 {
					c.contend(ctx, uint8(rand.IntN(hotNames)), 3)
				} else {
					c.contend(ctx, uint8(hotNames+rand.IntN(slowNames)), 400)
				}
			}
		})
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	all.Wait()
	if err := c.locker.Close(); err != nil && !errors.Is(err, sluice.ErrUnknown) {
		panic(err)
	}
}

// laggard is a connection on which some requests and replies are late, and some
// replies are lost.
type laggard struct {
	net.Conn
	lose, late atomic.Bool // what becomes of the next reply
}

func dialLaggard(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &laggard{Conn: conn}, nil
}

func (c *laggard) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("\r\nevalsha\r\n")) || bytes.Contains(p, []byte("\r\nset\r\n")) {
		switch n := rand.IntN(4000); {
		case n < 1:
			c.lose.Store(true)
		case n < 30:
			c.late.Store(true)
		case n < 60:
			time.Sleep(rand.N(30 * time.Millisecond)) // the network
		}
	}
	return c.Conn.Write(p)
}

func (c *laggard) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && c.lose.Load() {
		_ = c.Close()
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	}
	if c.late.Swap(false) {
		time.Sleep(rand.N(30 * time.Millisecond)) // the network
	}
	return n, err
}

// contend takes a lock once; slow is in how many of a thousand cases it then holds
// it for long.
func (c *contender) contend(ctx context.Context, name uint8, slow int) {
	rec := record{Name: name, Process: c.process, Handle: c.handles.Add(1)}
	if patience := rand.IntN(4); patience == 0 {
		bounded, cancel := context.WithTimeout(ctx, rand.N(20*time.Millisecond))
		defer cancel()
		ctx = bounded
	}
	ttl := 30 * time.Millisecond // a lock is handed on among about equal TTLs
	if rand.IntN(20) == 0 || name >= hotNames && rand.IntN(2) == 0 {
		ttl = 5*time.Millisecond + rand.N(40*time.Millisecond)
	}
	options := []sluice.LockOption{sluice.WithTTL(ttl)}
	if name%2 == 0 || rand.IntN(100) == 0 {
		options = append(options, sluice.WithFencing())
	}
	long := rand.IntN(1000) < slow
	way := rand.IntN(10)
	if way == 0 {
		c.do(ctx, rec, long, options)
		return
	}
	take, work := c.locker.Lock, c.brief
	if way == 1 {
		take = c.locker.TryLock
	}
	if long {
		switch rand.IntN(3) {
		case 0:
			work = c.extend
		case 1:
			work, options = c.renewed, append(options, sluice.WithAutoRenew())
		case 2:
			work = c.overstay
		}
	}
	k, err := take(ctx, lockName(name), options...)
	if err != nil {
		c.failed(ctx, rec, err)
		return
	}
	rec.From = monotonic()
	rec.Until = rec.From
	rec.Token, rec.Fence = hash(k.Token()), k.Fence()
	if !sample(k, &rec) {
		rec.write(expired)
	} else {
		work(ctx, k, &rec, ttl)
	}
	c.dead(k, rec)
}

func lockName(name uint8) string { return fmt.Sprintf("contended %d", name) }

// sample says whether the lock is held, and if so, that it was until now.
func sample(k *sluice.Lock, rec *record) bool {
	now := monotonic()
	if !k.Valid() {
		return false
	}
	rec.Until = now
	return true
}

// brief holds a lock for hardly any time.
func (c *contender) brief(ctx context.Context, k *sluice.Lock, rec *record, _ time.Duration) {
	if rand.IntN(20) == 0 {
		time.Sleep(rand.N(300 * time.Microsecond)) // work
		sample(k, rec)
	}
	rec.write(held)
	c.unlock(ctx, k, rec)
}

// extend holds a lock for longer than its TTL by extending it.
func (c *contender) extend(ctx context.Context, k *sluice.Lock, rec *record, ttl time.Duration) {
	for range 4 + rand.IntN(4) {
		time.Sleep(ttl / 4) // work
		if !sample(k, rec) {
			break
		}
		rec.write(holding)
		if k.Extend(context.WithoutCancel(ctx), ttl) == nil {
			rec.Renewals++
		}
	}
	sample(k, rec)
	rec.write(held)
	c.unlock(ctx, k, rec)
}

// renewed holds a lock for longer than its TTL by having it renewed.
func (c *contender) renewed(ctx context.Context, k *sluice.Lock, rec *record, ttl time.Duration) {
	until, deadline := rec.From+2*ttl, k.Deadline()
	for rec.Until < until {
		time.Sleep(2 * time.Millisecond) // work
		if !sample(k, rec) {
			rec.write(expired)
			break
		}
		rec.write(holding)
		if now := k.Deadline(); now.After(deadline) {
			rec.Renewals++
			deadline = now
		}
	}
	rec.write(held)
	c.unlock(ctx, k, rec)
}

// overstay holds a lock beyond its deadline, and does too late what a holder does.
func (c *contender) overstay(ctx context.Context, k *sluice.Lock, rec *record, ttl time.Duration) {
	ended := k.Context()
	last := rand.IntN(2) == 0 // an extension that comes too late, or just in time
	for i := 0; sample(k, rec); i++ {
		if i%16 == 0 {
			rec.write(holding)
		}
		if last && time.Until(k.Deadline()) < 2*time.Millisecond {
			last = false
			go func() { _ = k.Extend(context.Background(), ttl) }()
		}
		time.Sleep(rand.N(300 * time.Microsecond)) // so that it is known to the end
	}
	rec.write(held)
	rec.write(expired)
	for range rand.IntN(8) {
		time.Sleep(rand.N(10 * time.Millisecond)) // it has not noticed yet
		c.dead(k, *rec)
	}
	select {
	case <-ended.Done():
	case <-time.After(10 * time.Second):
		panic("the context of a lost lock has not ended")
	}
	switch rand.IntN(4) {
	case 0: // forgotten
	case 1:
		if err := k.Extend(context.WithoutCancel(ctx), ttl); !errors.Is(err, sluice.ErrNotHeld) {
			panic(fmt.Sprint("extended beyond its deadline: ", err))
		}
	default:
		c.unlock(ctx, k, rec)
	}
}

// do takes a lock with Do. It was held to the end if Do says so.
func (c *contender) do(ctx context.Context, rec record, long bool, options []sluice.LockOption) {
	err := c.locker.Do(ctx, lockName(rec.Name), func(ctx context.Context) error {
		rec.From = monotonic()
		if long {
			time.Sleep(rand.N(50 * time.Millisecond)) // work
		}
		rec.Until = monotonic()
		return nil
	}, options...)
	switch {
	case err == nil:
		rec.write(held)
	case rec.From != 0 && errors.Is(err, sluice.ErrLost):
		rec.write(lost)
	default:
		c.failed(ctx, rec, err)
	}
}

// failed records why a lock was not taken.
func (c *contender) failed(ctx context.Context, rec record, err error) {
	switch {
	case errors.Is(err, sluice.ErrUnknown), errors.Is(err, sluice.ErrLost):
		rec.write(lost)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		rec.write(ctxEnded)
	case errors.Is(err, sluice.ErrLocked):
		rec.write(busy)
	default:
		panic(err)
	}
}

func (c *contender) unlock(ctx context.Context, k *sluice.Lock, rec *record) {
	err := k.Unlock(ctx)
	if err != nil && !errors.Is(err, sluice.ErrNotHeld) && !errors.Is(err, sluice.ErrUnknown) {
		panic(err)
	}
	c.dead(k, *rec)
}

// dead checks that a lock that was seen not to be held, or released, is no more.
func (c *contender) dead(k *sluice.Lock, rec record) {
	if k.Valid() {
		rec.write(revived)
	}
}

// write tells the parent, in one piece.
func (rec record) write(what event) {
	rec.Event = what
	p, err := binary.Append(make([]byte, 0, recordSize), binary.LittleEndian, rec)
	if err == nil {
		_, err = os.Stdout.Write(p)
	}
	if err != nil {
		panic(err)
	}
}

func hash(token string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(token))
	return h.Sum64()
}

func (rec record) String() string {
	return fmt.Sprintf("%q by process %d (lock %d, fence %d) from %v to %v",
		lockName(rec.Name), rec.Process, rec.Handle, rec.Fence, rec.From, rec.Until)
}

// history is what all contenders told.
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

// told is how many records there are of each event.
func (h *history) told() [events]int {
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

// TestExclusion has four processes contend for a few names in all ways,
// while a process is killed every now and then, the server stops for a moment,
// requests are late and replies lost. No two may hold a name at a time, by what
// their Valid says, and their fences rise. In full:
//
//	go test -run TestExclusion -v -timeout 1h . -acquisitions 1000000
func TestExclusion(t *testing.T) {
	// Not parallel: it takes all there is.
	const processes, kills = 4, 20
	s := redistest.Start(t)
	h := &history{index: map[[2]uint64]int{}}
	var readers sync.WaitGroup
	var started uint32
	var failed atomic.Pointer[error] // of a process that was not killed
	begin := func() *process {
		started++
		p := startChild(t, "contender", s.Addr, started)
		readers.Go(func() {
			h.add(p.out)
			if err := p.wait(); err != nil && err.Error() != "signal: killed" {
				failed.Store(&err)
			}
		})
		return p
	}
	var running []*process
	for range processes {
		running = append(running, begin())
	}
	start, killed := time.Now(), 0
	for {
		told := h.told()
		if told[held] >= *acquisitions && killed >= kills &&
			told[ctxEnded] >= *acquisitions/100 && told[expired] >= *acquisitions/1000 {
			break
		}
		require.Nil(t, failed.Load(), "a process has failed")
		require.Less(t, time.Since(start), time.Minute+time.Duration(*acquisitions)*time.Millisecond, "too slow: %v", told)
		time.Sleep(150*time.Millisecond + rand.N(250*time.Millisecond)) // they work
		i := rand.IntN(processes)
		require.NoError(t, running[i].cmd.Process.Kill())
		killed++
		running[i] = begin()
		if rand.IntN(4) == 0 {
			s.Pause(t)
			time.Sleep(rand.N(60 * time.Millisecond)) // the outage
			s.Resume(t)
		}
	}
	took := time.Since(start)
	for _, p := range running {
		require.NoError(t, p.in.Close())
	}
	readers.Wait()
	require.Nil(t, failed.Load(), "a process has failed")
	wrong := h.check()
	t.Logf("%d acquisitions in %v, %d handed on, %d renewals, %d kills, %d contexts ended, %d expired, %d busy, %d lost",
		len(h.records), took.Round(time.Millisecond), h.handed, h.renewed, killed, h.counts[ctxEnded], h.counts[expired], h.counts[busy], h.counts[lost])
	require.Empty(t, wrong[:min(len(wrong), 10)], "%d in all", len(wrong))
	require.GreaterOrEqual(t, h.handed, *acquisitions/10, "hardly ever handed on")
	require.GreaterOrEqual(t, h.renewed, *acquisitions/200, "hardly ever renewed")
	require.GreaterOrEqual(t, h.fenced, *acquisitions/5, "hardly any fences")
}

// TestHistoryIsChecked shows the checker what it must find.
func TestHistoryIsChecked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		records []record
		wrong   string
	}{
		"one after the other": {[]record{{From: 1, Until: 5}, {From: 5, Until: 9}}, ""},
		"other names":         {[]record{{From: 1, Until: 5, Fence: 9}, {Name: 1, From: 2, Until: 9, Fence: 8}}, ""},
		"told twice":          {[]record{{Event: holding, From: 1, Until: 5, Handle: 1}, {From: 1, Until: 7, Handle: 1}}, ""},
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
			var told bytes.Buffer
			for i, rec := range c.records {
				if rec.Handle == 0 {
					rec.Handle = uint64(100 + i)
				}
				require.NoError(t, binary.Write(&told, binary.LittleEndian, rec))
			}
			require.Equal(t, len(c.records)*recordSize, told.Len())
			told.WriteString("half a record")
			h.add(&told)
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
