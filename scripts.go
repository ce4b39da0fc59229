package sluice

import (
	"embed"
	"fmt"
	"strings"
)

// The digests are kept beside the scripts instead of being computed, because
// SHA-1 panics under GODEBUG=fips140=only. TestDigests keeps them true.
//
//go:embed lua
var lua embed.FS

// script is a Lua script and the digest under which the server caches it.
type script struct {
	name   string
	source string
	digest string
}

// The lock's scripts stand alone and use one key; the queue's begin with a
// prelude of what they share.
var (
	scriptAcquire = newScript("acquire")
	scriptRelease = newScript("release")
	scriptExtend  = newScript("extend")
	scriptInspect = newScript("inspect")
	scriptForce   = newScript("force")

	scriptEnqueue    = newScript("enqueue", "prelude")
	scriptDequeue    = newScript("dequeue", "prelude")
	scriptClaim      = newScript("claim", "prelude", "due")
	scriptPop        = newScript("pop", "prelude", "due")
	scriptPeek       = newScript("peek", "prelude", "due")
	scriptHeartbeat  = newScript("heartbeat", "prelude")
	scriptGiveBack   = newScript("giveback", "prelude")
	scriptBury       = newScript("bury", "prelude")
	scriptDead       = newScript("dead", "prelude")
	scriptRevive     = newScript("revive", "prelude")
	scriptCancel     = newScript("cancel", "prelude")
	scriptReschedule = newScript("reschedule", "prelude")
	scriptGet        = newScript("get", "prelude")
	scriptNext       = newScript("next", "prelude")
	scriptStats      = newScript("stats", "prelude")
	scriptPurge      = newScript("purge")
)

// scripts is all of them, by name.
var scripts = map[string]*script{}

func newScript(name string, preludes ...string) *script {
	s := &script{name: name}
	for _, part := range append(preludes, name) {
		s.source += luaFile(part + ".lua")
	}
	for line := range strings.Lines(luaFile("digests.txt")) {
		if digest, of, ok := strings.Cut(strings.TrimSpace(line), "  "); ok && of == name {
			s.digest = digest
		}
	}
	scripts[name] = s
	return s
}

func luaFile(name string) string {
	data, err := lua.ReadFile("lua/" + name)
	if err != nil {
		panic(fmt.Sprintf("sluice: embedded script: %v", err))
	}
	return string(data)
}
