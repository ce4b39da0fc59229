package store

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// Scripts are the Lua scripts of the library. The digests are kept beside them instead of being
// computed, because SHA-1 panics under GODEBUG=fips140=only.
type Scripts struct {
	files fs.FS
	All   map[string]*redisexec.Script // by name

	Acquire, Release, Extend, PermitAcquire, PermitExtend, PermitRelease, PermitInspect, Inspect, Force, CheckLock *redisexec.Script

	Enqueue, Exchange, Pop, Peek, Heartbeat, GiveBack, Bury, Revive, Drop, Cancel, Reschedule, Get, Next, Heads, Stats, List, Pause, Resume, Limit, Seen, Workers, Purge, CheckQueue, Mark *redisexec.Script
}

// Load reads the scripts from the directory with their files.
//
// The lock's scripts use no other preludes than kinds, fence, permits, line and join, and one key,
// with the line two or, with fences, three. The queue's, except purge, begin with what they share:
// the files of shared that are named behind the policy, in this order, and before prelude and
// publish rights. The policy is what RETRY says in the script's header.
func Load(files fs.FS) *Scripts {
	s := &Scripts{files: files, All: map[string]*redisexec.Script{}}
	s.Acquire = s.add("acquire", redisexec.Never, "kinds", "fence", "line", "join")
	s.Release = s.add("release", redisexec.Idempotent, "kinds", "fence", "line")
	s.Extend = s.add("extend", redisexec.Idempotent, "kinds", "fence")
	s.PermitAcquire = s.add("permit_acquire", redisexec.Never, "kinds", "fence", "line", "permits", "join")
	s.PermitExtend = s.add("permit_extend", redisexec.Idempotent, "kinds", "fence")
	s.PermitRelease = s.add("permit_release", redisexec.Idempotent, "kinds", "fence", "line", "permits")
	s.PermitInspect = s.add("permit_inspect", redisexec.ReadOnly, "kinds", "fence")
	s.Inspect = s.add("inspect", redisexec.ReadOnly, "kinds", "fence")
	s.Force = s.add("force", redisexec.Never, "kinds", "fence", "line", "permits")
	s.CheckLock = s.add("check_lock", redisexec.ReadOnly, "check")

	s.Enqueue = s.add("enqueue", redisexec.Never, "prelude", "idle", "new", "wake", "batch", "read", "failure", "state", "fields", "put")
	s.Exchange = s.add("exchange", redisexec.Never, "prelude", "idle", "wake", "place", "read", "limits", "freed", "failure", "tally", "done", "state", "plain", "fields", "trim", "due", "finish")
	s.Pop = s.add("pop", redisexec.Never, "prelude", "idle", "wake", "limits", "read", "failure", "tally", "state", "fields", "trim", "due")
	s.Peek = s.add("peek", redisexec.ReadOnly, "prelude", "read", "state", "fields", "page", "payload", "due")
	s.Heartbeat = s.add("heartbeat", redisexec.Idempotent, "prelude", "limits", "renew", "state", "fields")
	s.GiveBack = s.add("giveback", redisexec.Idempotent, "prelude", "idle", "wake", "limits", "freed", "failure", "tally", "state", "fields")
	s.Bury = s.add("bury", redisexec.Idempotent, "prelude", "idle", "wake", "limits", "freed", "failure", "tally", "state", "fields", "trim")
	s.Revive = s.add("revive", redisexec.Never, "prelude", "idle", "wake", "state", "fields")
	s.Drop = s.add("drop", redisexec.Never, "prelude")
	s.Cancel = s.add("cancel", redisexec.Never, "prelude", "publish", "idle", "wake", "limits", "freed", "failure", "state", "fields")
	s.Reschedule = s.add("reschedule", redisexec.Never, "prelude", "idle", "wake", "failure", "state", "fields")
	s.Get = s.add("get", redisexec.ReadOnly, "prelude", "read", "state", "fields", "payload")
	s.Next = s.add("next", redisexec.Idempotent, "prelude", "idle", "place", "limits", "head")
	s.Heads = s.addHeads()
	s.Stats = s.add("stats", redisexec.ReadOnly, "prelude", "limits")
	s.List = s.add("list", redisexec.ReadOnly, "prelude", "read", "state", "fields", "page", "lists", "payload")
	s.Pause = s.add("pause", redisexec.Never, "prelude", "idle", "wake", "limits", "change")
	s.Resume = s.add("resume", redisexec.Never, "prelude", "idle", "wake", "limits", "change")
	s.Limit = s.add("limit", redisexec.Never, "prelude", "idle", "wake", "limits", "change")
	s.Seen = s.add("seen", redisexec.Idempotent, "prelude", "tally", "done", "trim")
	s.Workers = s.add("workers", redisexec.ReadOnly, "prelude")
	s.Purge = s.add("purge", redisexec.Never)
	s.CheckQueue = s.add("check_queue", redisexec.ReadOnly, "check")
	s.Mark = s.add("mark", redisexec.Idempotent, "rights")
	return s
}

func (s *Scripts) add(name string, retry redisexec.RetryPolicy, preludes ...string) *redisexec.Script {
	if slices.Contains(preludes, "prelude") || slices.Contains(preludes, "publish") {
		preludes = slices.Insert(preludes, 0, "rights")
	}
	return s.addSource(name, s.source(name, preludes...), retry)
}

func (s *Scripts) source(name string, preludes ...string) (source string) {
	for _, part := range preludes {
		source += s.file("shared/" + part + ".lua")
	}
	return source + s.file(name+".lua")
}

func (s *Scripts) addSource(name, source string, retry redisexec.RetryPolicy) *redisexec.Script {
	s.All[name] = redisexec.NewScript(source, s.Digest(name), retry)
	return s.All[name]
}

// addHeads makes the script that looks at up to MaxLook queues: the last line of heads.lua, which is
// for one, is repeated, so that each call names its keys literally, as in all scripts.
func (s *Scripts) addHeads() *redisexec.Script {
	source := s.source("heads", "rights", "prelude", "head")
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
	return s.addSource("heads", source, redisexec.Idempotent)
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
