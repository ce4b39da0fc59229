package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPlan_OfASeedIsTheSame: the same seed leads to the same strikes, and another one to others.
func TestPlan_OfASeedIsTheSame(t *testing.T) {
	t.Parallel()
	strikes := func(c config, round int) (text string) {
		p := c.newPlan(round)
		for range 3 * len(c.faults) {
			text += fmt.Sprintln(p.draw())
		}
		return text
	}
	for _, c := range []config{
		{seed: 5, clients: 4, faults: faults},
		{seed: 5, clients: 10, faults: lastingFaults, liveness: true},
	} {
		other := c
		other.seed = 6
		require.Equal(t, strikes(c, 1), strikes(c, 1))
		require.NotEqual(t, strikes(c, 1), strikes(c, 0))
		require.NotEqual(t, strikes(c, 1), strikes(other, 1))
	}
}

// TestPlan_HitsEachClientOnce, and every fault before one strikes again.
func TestPlan_HitsEachClientOnce(t *testing.T) {
	t.Parallel()
	c := config{seed: 7, clients: len(lastingFaults), faults: lastingFaults, liveness: true}
	p, slots, names := c.newPlan(0), map[int]bool{}, map[string]bool{}
	for range c.clients {
		s := p.draw()
		slots[s.slot], names[s.name] = true, true
	}
	require.Len(t, slots, c.clients)
	require.Len(t, names, c.clients)
}

func TestCommand_LeadsToTheSameStrikes(t *testing.T) {
	t.Parallel()
	c := config{seed: 7, length: time.Minute, clients: 10, only: "mute", liveness: true}
	require.Equal(t, "go run -C proof ./chaos -seed 7 -for 1m0s -clients 10 -only mute -liveness", c.command())
}

// lively has the scenario check that clients go on, of whom the one called "gone" is gone since
// then.
func (s *scenario) lively(gone time.Duration) *scenario {
	s.waits, s.clients, s.gone = waits{}, 2, map[string]time.Duration{"gone": gone * ms}
	s.dies("gone", gone)
	return s
}

// leftBehind has a client be gone at 20 with a lock whose TTL is 100, and another be granted the
// lock then.
func leftBehind(granted time.Duration) *scenario {
	s := lasting(5000).lively(20).at(10).logs("SET Lock:n T PXAT @110").at(granted - 1).logs("DEL Lock:n; SET Lock:n U PXAT @" + fmt.Sprint(int(granted)+100))
	left, next := heldFor(100, held("gone", "T", 9, 11, 19, 0)), heldFor(100, held("a", "U", 15, granted, granted+5, 0))
	left.Unlock, left.Return, left.Result = 0, 0, pending
	return s.recorded(left).recorded(next).at(granted + 6).logs("DEL Lock:n")
}

// leftBehindTwice has a second client be gone, which is granted the lock at 120, before another is.
func leftBehindTwice(granted time.Duration) *scenario {
	s := lasting(5000).lively(20).at(10).logs("SET Lock:n T PXAT @110").at(120).logs("DEL Lock:n; SET Lock:n V PXAT @220")
	s.at(granted - 1).logs("DEL Lock:n; SET Lock:n U PXAT @" + fmt.Sprint(int(granted)+100))
	s.gone["other"] = 30 * ms
	s.dies("other", 30)
	left, next := heldFor(100, held("gone", "T", 9, 11, 19, 0)), heldFor(100, held("a", "U", 15, granted, granted+5, 0))
	left.Unlock, left.Return, left.Result = 0, 0, pending
	return s.recorded(left).recorded(next).at(granted + 6).logs("DEL Lock:n")
}

// dueUntil has a task be due at 20 and claimed then.
func dueUntil(claim int) *scenario {
	return lasting(5000).lively(20).at(10).enqueued("v", 20).claimed("v", 1, claim).at(time.Duration(claim)+10).logs(gone).settled(opDequeue, "", claim+400, 0, done)
}

// livenessCases are about clients that are gone.
var livenessCases = map[string]checkCase{
	"a lock whose holder is gone is taken in time": {leftBehind(230), ""},
	"a lock whose holder is gone is taken late":    {leftBehind(700), "was waited for"},
	"a lock whose holder, and the next, are gone":  {leftBehindTwice(430), ""},
	"a lock of two that are gone is taken late":    {leftBehindTwice(700), "was waited for"},
	"a task is handed out in time":                 {dueUntil(600), ""},
	"a task is handed out late":                    {dueUntil(1500), "task that is due"},
	"the machine was busy":                         {leftBehind(700).recorded(record{Op: opStall, Call: 200, Return: 690, Result: done}), ""},
	"a call returns after its context": {lasting(5000).lively(20).
		recorded(record{Op: opTake, Name: "n", Call: 10, Limit: 20, Return: 200, Result: waited}), "call whose context ended"},
}

// TestHistory_IsReadBackAndChecked: what is written is read, and found legal; what was tampered
// with is not.
func TestHistory_IsReadBackAndChecked(t *testing.T) {
	t.Parallel()
	s := newScenario()
	for i := range 3 {
		at := time.Duration(100 * i)
		s.recorded(held("a", fmt.Sprint(i), at+1, at+11, at+50, 0))
	}
	c := &checker{evidence: &s.evidence, replayed: &replayed{}}
	dir := filepath.Join(t.TempDir(), "histories")
	require.NoError(t, writeHistories(dir, "round-1-", c.histories()))
	path := filepath.Join(dir, "round-1-n.jsonl")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	first, _, _ := strings.Cut(string(text), "\n")
	require.Equal(t, `{"client":0,"call":1000000,"return":11000000,"input":{"op":"acquire","owner":1},"output":"ok"}`, first)

	history, err := readHistory(strings.NewReader(string(text)))
	require.NoError(t, err)
	require.Len(t, history, 6)
	require.NoError(t, legal(history))
	require.Zero(t, checkFile(path))

	overlapping := strings.Replace(string(text), `"call":50000000,"return":51000000`, `"call":150000000,"return":151000000`, 1)
	require.NotEqual(t, string(text), overlapping)
	require.NoError(t, os.WriteFile(path, []byte(overlapping), 0o600))
	require.Equal(t, 1, checkFile(path))
	for _, tampered := range []string{"{", `{"client":1,"owner":3}`, strings.Replace(string(text), "acquire", "renew", 1)} {
		_, err := readHistory(strings.NewReader(tampered))
		require.Error(t, err)
	}
}
