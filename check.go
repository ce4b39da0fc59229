package sluice

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// Check says what would keep locks from working, and changes nothing: call it when a program starts, and print
// its error. It is nil, or has a line for each thing that is wrong:
//
//   - the server cannot be reached (ErrUnavailable), does not accept the password or the certificate, is a replica, or
//     belongs to a Cluster and the client does not; or the client is closed, or the Locker (ErrClosed);
//   - the user may not run a command that docs/operations.md grants for these options, on a lock with the name "check":
//     a user whose patterns are for other names only is told so. Redis 6 cannot be asked;
//   - the server evicts locks when its memory is full, if the user may ask for that (CONFIG GET).
//
// It waits for 5s at most for each of its replies. No line has a password or a token.
func (l *Locker) Check(ctx context.Context) error {
	const op, name = "check", "check"
	if err := l.check(op); err != nil {
		return err
	}
	if l.engine.Closed() {
		return fmt.Errorf("sluice: %s: %w", op, ErrClosed)
	}
	main, err := store.MainKey(l.engine.Options.Prefix, name)
	if err != nil {
		return fmt.Errorf("sluice: %s: %w", op, err)
	}
	// No lock can have this key: it has a hash tag, and ends as a companion.
	probe := l.engine.Options.Prefix + "{" + main + "}" + keyspace.Wake
	if keyspace.HasHashTag(main) {
		probe = main + keyspace.Wake
	}
	if err := checkServer(ctx, l.engine.Executor, scripts.CheckLock, probe, l.commands(main), "volatile", "allkeys"); err != nil {
		return fmt.Errorf("sluice: %s: %w", op, err)
	}
	return nil
}

// commands are those that the Locker's locks need.
func (l *Locker) commands(main string) []string {
	fence, wake := keyspace.Companion(main, keyspace.Fence), keyspace.Companion(main, keyspace.Wake)+":check"
	all := append(commandsOfAll(wake), on(main, "SET key v PX 1 NX", "GET key", "PTTL key", "PEXPIRE key 1", "DEL key")...)
	all = append(all, on(keyspace.Companion(main, keyspace.Line), "ZADD key 1 m", "ZREM key m", "ZCARD key", "ZCOUNT key 0 1",
		"ZRANGE key 0 0", "ZSCORE key m", "PTTL key", "PEXPIRE key 1", "TIME")...)
	all = append(all, on(wake, "PUBSUB NUMSUB key")...)
	if l.engine.Options.Fenced {
		all = append(all, on(fence, "GET key", "SET key 1 PX 1", "DECRBY key 1")...)
	}
	if l.engine.Options.Permits > 0 {
		all = append(all, on(main, "ZADD key 1 m", "ZREM key m", "ZCARD key", "ZCOUNT key 0 1", "ZRANGE key 0 0",
			"ZRANGEBYSCORE key 0 1", "ZSCORE key m", "ZREMRANGEBYSCORE key 0 1")...)
	}
	return withReplicas(all, l.engine.Options.Replicas)
}

// Check says what would keep the queue from working, and changes nothing, as Locker.Check does. It asks for all
// that producers, workers and operators need except Pause, Resume and Purge, and for the queue's own name.
//
// A server that is older than 6.2 is an error, and keys that the library did not write are ErrCorrupt.
func (q *Queue) Check(ctx context.Context) error {
	const op = "check"
	if err := q.check(op); err != nil {
		return err
	}
	err := checkServer(ctx, q.executor, scripts.CheckQueue, q.store.Key(), q.commands(), "allkeys")
	if err == nil {
		nothing := q.store.Exchange(nil, store.Claim{}) // reads each key
		nothing.Until = time.Now().Add(redisexec.MaxQuiet)
		err = q.executor.Once(ctx, nothing).Final()
	}
	return wrap(op, q.name, err)
}

// commands are those that the queue needs.
func (q *Queue) commands() []string {
	main := q.store.Key()
	all := append(commandsOfAll(q.store.WakeChannel()+":check"), on(q.store.CanceledChannel(), "PUBLISH key m", "SUBSCRIBE key")...)
	all = append(all, on(keyspace.Companion(main, keyspace.Line), "ZADD key 1 m", "ZREM key m", "ZCARD key", "ZRANGE key 0 0", "ZSCORE key m",
		"PTTL key", "PEXPIRE key 1", "TIME")...)
	all = append(all, on(main, "ZADD key 1 m", "ZREM key m", "ZCARD key", "ZCOUNT key 0 1", "ZRANGE key 0 0",
		"ZRANGEBYSCORE key 0 1", "ZSCORE key m", "ZMSCORE key m")...)
	for _, hash := range []string{keyspace.Tasks, keyspace.State} {
		all = append(all, on(keyspace.Companion(main, hash), "HSET key f v", "HGET key f", "HMGET key f", "HDEL key f", "HLEN key")...)
	}
	for ending, command := range map[string]string{
		keyspace.Dead: "ZADD key 1 m", keyspace.Leased: "ZADD key 1 m", keyspace.Paused: "GET key",
		keyspace.Errors: "HSET key f v", keyspace.Counts: "HINCRBY key f 1", keyspace.Workers: "ZREMRANGEBYSCORE key 0 1",
		keyspace.Done: "ZADD key 1 m", keyspace.Results: "HSET key f v",
	} {
		all = append(all, on(keyspace.Companion(main, ending), command)...)
	}
	return withReplicas(all, q.options.replicas)
}

// Check says what would keep the worker from working, and changes nothing: what Queue.Check says of its Queue, and
// ErrInvalid for a field that is out of range, or a nil Handler.
func (w *Worker) Check(ctx context.Context) error {
	const op = "check"
	if err := w.Queue.check(op); err != nil {
		return err
	}
	_, err := w.alone(op)
	return errors.Join(err, w.Queue.Check(ctx))
}

// Check says what would keep the pool from working, and changes nothing: what Queue.Check says of each queue, and ErrInvalid for what Run
// refuses.
func (p *Pool) Check(ctx context.Context) error {
	if _, err := p.newCrew("check"); err != nil {
		return err
	}
	var errs []error
	for _, w := range p.Workers {
		errs = append(errs, w.Queue.Check(ctx))
	}
	return errors.Join(errs...)
}

// configCommand asks whether the server evicts keys. It is the first in each list: to be denied it is no fault.
const configCommand = "CONFIG GET maxmemory*"

// commandsOfAll begins a list of commands, each as its words. wake is the channel on which waiters are notified.
func commandsOfAll(wake string) []string {
	return append([]string{configCommand, "EVAL x 0", "EVALSHA x 0", "PING", "UNSUBSCRIBE"}, on(wake, "PUBLISH key m", "SUBSCRIBE key")...)
}

// on returns commands on a key or channel, which may have blanks in it.
func on(key string, commands ...string) []string {
	named := make([]string, len(commands))
	for i, c := range commands {
		named[i] = strings.Replace(c, " key", " "+strings.ReplaceAll(key, " ", blank), 1)
	}
	return named
}

// blank stands for a blank in a word of a command.
const blank = "\x00"

func withReplicas(commands []string, replicas int) []string {
	if replicas > 0 {
		return append(commands, "WAIT 1 1")
	}
	return commands
}

// checkServer asks the server that keeps a key what keeps its user from commands, and whether it evicts keys by such a
// policy.
func checkServer(ctx context.Context, e *redisexec.Executor, script *redisexec.Script, key string, commands []string, evicting ...string) error {
	var args []any
	for _, c := range commands {
		words := strings.Fields(c)
		args = append(args, len(words))
		for _, word := range words {
			args = append(args, strings.ReplaceAll(word, blank, " "))
		}
	}
	r := script.Request([]any{key}, args...)
	r.Until = time.Now().Add(redisexec.MaxQuiet)
	answer := e.Once(ctx, r)
	if answer.Outcome == redisexec.Unknown {
		// A server closes the connection of a user without a password for a command of many words; to a short one it says why.
		short := e.Once(ctx, redisexec.Request{Args: []any{"ping"}, Until: r.Until})
		if redis.HasErrorPrefix(short.Err, "NOAUTH") {
			answer = short
		}
	}
	if answer.Outcome != redisexec.Done {
		return inWords(answer.Final())
	}
	numbers, ok := answer.Value.([]any)
	if !ok {
		return redisexec.Unexpected(answer.Value)
	}
	var wrong []error
	mayAsk := true
	for _, n := range numbers {
		switch n, _ := n.(int64); {
		case max(n, -n) > int64(len(commands)) || n == 0:
			return redisexec.Unexpected(n)
		case n == 1 || n == -1:
			mayAsk = false
		case n > 0:
			words := strings.Fields(commands[n-1])
			wrong = append(wrong, fmt.Errorf("the user may not run %s", strings.ReplaceAll(strings.Join(words[:min(len(words), 2)], " "), blank, " ")))
		default:
			wrong = append(wrong, fmt.Errorf("the server does not know %s", strings.Fields(commands[-n-1])[0]))
		}
	}
	if mayAsk {
		wrong = append(wrong, checkEviction(ctx, e, evicting))
	}
	return errors.Join(wrong...)
}

// checkEviction says whether the server may evict keys. It says nothing if it is not told.
func checkEviction(ctx context.Context, e *redisexec.Executor, evicting []string) error {
	args := make([]any, 0, 3)
	for _, word := range strings.Fields(configCommand) {
		args = append(args, word)
	}
	settings := map[any]any{}
	switch value := e.Once(ctx, redisexec.Request{Args: args, Until: time.Now().Add(redisexec.MaxQuiet)}).Value.(type) {
	case map[any]any:
		settings = value
	case []any:
		for i := 0; i+1 < len(value); i += 2 {
			settings[value[i]] = value[i+1]
		}
	}
	policy, _ := settings["maxmemory-policy"].(string)
	for _, kind := range evicting {
		if settings["maxmemory"] != "0" && strings.HasPrefix(policy, kind) {
			return fmt.Errorf("maxmemory-policy is %s: the server evicts what is locked or queued; set noeviction", policy)
		}
	}
	return nil
}

// inWords says what an error means for the operator. A request of Check has changed nothing, so that its outcome is
// not unknown.
func inWords(err error) error {
	says := func(what string) error { return fmt.Errorf("%s: %w", what, err) }
	switch {
	case errors.Is(err, redis.ErrClosed):
		return says("the client is closed")
	case redis.HasErrorPrefix(err, "WRONGPASS"), redis.HasErrorPrefix(err, "NOAUTH"), strings.Contains(err.Error(), "unauthenticated"):
		return says("the server does not accept the user's name or password")
	case redis.HasErrorPrefix(err, "MOVED"):
		return says("the server belongs to a Cluster, and the client is not a ClusterClient")
	case redis.HasErrorPrefix(err, "READONLY"):
		return says("the server is a replica")
	case errors.Is(err, ErrUnknown):
		return fmt.Errorf("%w: the server does not answer: %v", ErrUnavailable, err) //nolint:errorlint // it is not unknown
	}
	return err
}
