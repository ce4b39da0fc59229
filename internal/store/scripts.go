package store

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// Scripts are the Lua scripts of the library. The digests are kept beside them instead of being
// computed, because SHA-1 panics under GODEBUG=fips140=only.
type Scripts struct {
	files fs.FS
	All   map[string]*redisexec.Script // by name

	OfLocks, OfPermits LockScripts
	Force, CheckLock   *redisexec.Script

	Enqueue, EnqueueGroup, Take, SetStock, Stocks, Restore, Exchange, Pop, ExtendLeases, GiveBack, Bury, Revive, Drop, Cancel, Reschedule, Get, Next, Heads, Stats, List, ListWaiting, Pause, Limit, Presence, Workers, Purge, CheckQueue, Mark *redisexec.Script
}

// LockScripts are those that a kind of lock has of its own.
type LockScripts struct{ Acquire, Release, Extend, Inspect *redisexec.Script }

// Load reads the scripts from the directory with their files.
func Load(files fs.FS) *Scripts {
	s := &Scripts{files: files, All: map[string]*redisexec.Script{}}
	for name, script := range map[string]**redisexec.Script{
		"acquire": &s.OfLocks.Acquire, "permit_acquire": &s.OfPermits.Acquire,
		"release": &s.OfLocks.Release, "permit_release": &s.OfPermits.Release,
		"extend": &s.OfLocks.Extend, "permit_extend": &s.OfPermits.Extend,
		"inspect": &s.OfLocks.Inspect, "permit_inspect": &s.OfPermits.Inspect,
		"force": &s.Force, "check_lock": &s.CheckLock,

		"enqueue": &s.Enqueue, "enqueue_group": &s.EnqueueGroup, "take": &s.Take, "set_stock": &s.SetStock, "stocks": &s.Stocks, "restore": &s.Restore, "exchange": &s.Exchange, "pop": &s.Pop, "extend_leases": &s.ExtendLeases, "giveback": &s.GiveBack,
		"bury": &s.Bury, "revive": &s.Revive, "drop": &s.Drop, "cancel": &s.Cancel, "reschedule": &s.Reschedule,
		"get": &s.Get, "list": &s.List, "list_waiting": &s.ListWaiting, "stats": &s.Stats, "workers": &s.Workers, "presence": &s.Presence,
		"next": &s.Next, "heads": &s.Heads, "pause": &s.Pause, "limit": &s.Limit,
		"purge": &s.Purge, "mark": &s.Mark, "check_queue": &s.CheckQueue,
	} {
		*script = s.load(name)
		s.All[name] = *script
	}
	return s
}

// load makes a script of its file, and of the fragments of shared that it uses.
func (s *Scripts) load(name string) *redisexec.Script {
	own := s.file(name + ".lua")
	source := s.fragments(own, map[string]bool{}) + own
	if name == "heads" {
		source = forEachQueue(source)
	}
	return redisexec.NewScript(source, s.Digest(name), retries[header(own, "RETRY")[0]])
}

// retries are the policies that a script's header names behind RETRY.
var retries = map[string]redisexec.RetryPolicy{
	"never": redisexec.Never, "idempotent": redisexec.Idempotent, "readOnly": redisexec.ReadOnly,
}

// fragments returns those that a file uses, each behind those that it uses itself, except those
// that are loaded already.
func (s *Scripts) fragments(file string, loaded map[string]bool) (all string) {
	for _, name := range header(file, "USES") {
		if !loaded[name] {
			loaded[name] = true
			fragment := s.file("shared/" + name + ".lua")
			all += s.fragments(fragment, loaded) + fragment
		}
	}
	return all
}

// header returns the words of the line of a file that begins with that label; none if there is no
// such line.
func header(file, label string) []string {
	_, rest, _ := strings.Cut(file, "-- "+label+" ")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" ,:", r) })
}

// forEachQueue makes heads.lua look at up to MaxLook queues. Its last line is for one, and is
// repeated with other numbers, so that each call names its keys literally, as in all scripts.
func forEachQueue(source string) string {
	body := strings.TrimSuffix(source, "\n")
	last := body[strings.LastIndexByte(body, '\n')+1:] + "\n"
	for i := 1; i < MaxLook; i++ {
		var numbers []string
		for n := 1; n <= 3; n++ {
			numbers = append(numbers, fmt.Sprintf("KEYS[%d]", n), fmt.Sprintf("KEYS[%d]", 3*i+n))
		}
		for n := 1; n <= 2; n++ {
			numbers = append(numbers, fmt.Sprintf("ARGV[%d]", n), fmt.Sprintf("ARGV[%d]", 2*i+n))
		}
		source += strings.NewReplacer(numbers...).Replace(last)
	}
	return source
}

// Digest returns the digest of a script that is kept for it; "" if there is none.
func (s *Scripts) Digest(name string) string {
	for line := range strings.Lines(s.file("digests.txt")) {
		if digest, of, ok := strings.Cut(strings.TrimSpace(line), "  "); ok && of == name {
			return digest
		}
	}
	return "" // TestDigests finds it
}

func (s *Scripts) file(name string) string {
	data, err := fs.ReadFile(s.files, name)
	if err != nil {
		panic(fmt.Sprintf("sluice: embedded script: %v", err))
	}
	return string(data)
}
