package store

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redisexec"
)

// Part is a part of the library that needs rights on the server.
type Part int

// The parts. All needs what locks and queues both need.
const (
	All Part = iota
	Locks
	Fences
	Permits
	Queues
	Operators // of queues: Pause, Resume, SetLimits, Purge, and claims with a rate
	Replicas  // WithLockReplicas and WithQueueReplicas
)

// Right is commands that a part needs on keys or channels.
type Right struct {
	Part     Part
	On       []string // how the companions end that are the keys or channels; "" for the main key
	Commands string   // each with all of its arguments, where "key" stands for that key or channel; between "; "
}

// Rights are all that the parts need, except on a Cluster. Check asks for them, and
// docs/operations.md grants them.
var Rights = []Right{
	{All, []string{""}, "EVAL x 0; EVALSHA x 0; PING; UNSUBSCRIBE"},
	{All, []string{keyspace.Wake}, "PUBLISH key m; SUBSCRIBE key"},
	{Locks, []string{""}, "SET key v PX 1 NX; GET key; PTTL key; PEXPIRE key 1; DEL key; TIME"},
	{Locks, []string{keyspace.Line}, "ZCOUNT key 0 1; " + lineCommands},
	{Locks, []string{keyspace.Wake}, "PUBSUB NUMSUB key"},
	{Fences, []string{keyspace.Fence}, "GET key; SET key 1 PX 1; DECRBY key 1"},
	{Permits, []string{""}, sortedSetCommands + "; ZREMRANGEBYSCORE key 0 1"},
	{Queues, []string{""}, sortedSetCommands + "; ZMSCORE key m; TIME"},
	{Queues, []string{keyspace.Tasks, keyspace.State}, "HSET key f v; HGET key f; HMGET key f; HDEL key f; HLEN key"},
	{Queues, []string{keyspace.Dead, keyspace.Leased, keyspace.Done}, "ZADD key 1 m"},
	{Queues, []string{keyspace.Paused}, "GET key"},
	{Queues, []string{keyspace.Line}, lineCommands},
	{Queues, []string{keyspace.Errors, keyspace.Results}, "HSET key f v"},
	{Queues, []string{keyspace.Counts}, "HINCRBY key f 1"},
	{Queues, []string{keyspace.Workers}, "ZREMRANGEBYSCORE key 0 1"},
	{Queues, []string{keyspace.Canceled}, "PUBLISH key m; SUBSCRIBE key"},
	{Queues, []string{keyspace.Stock}, "HINCRBY key f 1; HSET key f v; HGET key f; HMGET key f; HGETALL key; HDEL key f; HLEN key"},
	{Queues, []string{keyspace.State}, "HSCAN key 0"},
	{Queues, []string{keyspace.Groups}, "ZADD key 0 m; ZREM key m; ZCARD key; ZRANGEBYLEX key - +; ZLEXCOUNT key - +"},
	{Operators, []string{""}, "UNLINK key"},
	{Operators, []string{keyspace.Paused}, "SET key v; DEL key"},
	{Replicas, []string{""}, "WAIT 1 1"},
}

const (
	sortedSetCommands = "ZADD key 1 m; ZREM key m; ZCARD key; ZCOUNT key 0 1; ZRANGE key 0 0; ZRANGEBYSCORE key 0 1; ZSCORE key m"
	lineCommands      = "ZADD key 1 m; ZREM key m; ZCARD key; ZRANGE key 0 0; ZSCORE key m; PTTL key; PEXPIRE key 1"
)

// evictionCommand asks whether the server evicts keys. A user may do without it.
var evictionCommand = []string{"CONFIG", "GET", "maxmemory*"}

// Eviction asks whether the server evicts keys.
func Eviction() redisexec.Request { return redisexec.Plain(asArguments(evictionCommand)...) }

// Check asks a server which rights its user lacks. It changes nothing.
type Check struct {
	redisexec.Request
	asked [][]string // the words of each command: evictionCommand is the first
}

// CheckLocks is the Check of the parts that locks with that prefix need. It asks for the name
// "check".
func (s *Scripts) CheckLocks(prefix string, parts map[Part]bool) (Check, error) {
	main, err := MainKey(prefix, "check")
	// No lock can have the key that the script names: it has a hash tag, and ends as a companion.
	return newCheck(s.CheckLock, prefix+"{"+main+"}"+keyspace.Wake, main, parts), err
}

// Check is the Check of what the queue needs, except Operators.
func (q *Queue) Check() Check {
	return newCheck(q.scripts.CheckQueue, q.Key(), q.Key(), map[Part]bool{All: true, Queues: true, Replicas: q.options.Replicas > 0})
}

func newCheck(script *redisexec.Script, key, main string, parts map[Part]bool) Check {
	asked, args := [][]string{evictionCommand}, []any{}
	for _, right := range Rights {
		for _, ending := range right.On {
			if parts[right.Part] {
				asked = append(asked, right.commands(main, ending)...)
			}
		}
	}
	for _, words := range asked {
		args = append(append(args, len(words)), asArguments(words)...)
	}
	return Check{Request: script.Request([]any{key}, args...), asked: asked}
}

// commands returns the words of each command on one of the keys or channels.
func (r Right) commands(main, ending string) (all [][]string) {
	key := main
	if ending != "" {
		key = keyspace.Companion(main, ending)
	}
	if ending == keyspace.Wake { // the client's name is behind it
		key += ":check"
	}
	for command := range strings.SplitSeq(r.Commands, "; ") {
		words := strings.Fields(command)
		if i := slices.Index(words, "key"); i > 0 {
			words[i] = key
		}
		all = append(all, words)
	}
	return all
}

// Decode reads the answer: what is wrong, and whether the user may ask for Eviction.
func (c *Check) Decode(value any) (wrong []error, mayAsk bool, err error) {
	numbers, ok := value.([]any)
	if !ok {
		return nil, false, redisexec.Unexpected(value)
	}
	mayAsk = true
	for _, number := range numbers {
		n, _ := number.(int64)
		at := max(n, -n) - 1
		switch {
		case at < 0 || at >= int64(len(c.asked)):
			return nil, false, redisexec.Unexpected(n)
		case at == 0:
			mayAsk = false
		case n > 0:
			words := c.asked[at]
			wrong = append(wrong, fmt.Errorf("the user may not run %s", strings.Join(words[:min(len(words), 2)], " ")))
		default:
			wrong = append(wrong, fmt.Errorf("the server does not know %s", c.asked[at][0]))
		}
	}
	return wrong, mayAsk, nil
}

// DecodeEviction reads the answer to Eviction: the policy by which the server evicts keys when its
// memory is full; "" if its memory has no limit, or if it has not said so.
func DecodeEviction(value any) string {
	settings, _ := value.(map[any]any)
	if pairs, ok := value.([]any); ok { // of RESP 2
		settings = map[any]any{}
		for i := 0; i+1 < len(pairs); i += 2 {
			settings[pairs[i]] = pairs[i+1]
		}
	}
	if settings["maxmemory"] == "0" {
		return ""
	}
	policy, _ := settings["maxmemory-policy"].(string)
	return policy
}
