// Package keyspace turns the names of locks and queues into Redis keys.
//
// A lock or queue has a main key and companions, which are named after it so that all
// of them hash to one Cluster slot:
//
//	main key  stock       companions {stock}:wake, ...
//	main key  {eu}:phone  companions {eu}:phone:wake, ...
package keyspace

import (
	"errors"
	"fmt"
	"strings"
)

// MaxLength is the most bytes that a name, a prefix or a task ID may have.
const MaxLength = 512

// The endings of companion keys and channels.
const (
	Tasks    = ":tasks"    // of a queue: its tasks' payloads
	State    = ":state"    // of a queue: its tasks' state fields
	Dead     = ":dead"     // of a queue: its dead letters
	Leased   = ":leased"   // of a queue: its leased tasks, with the ends of their leases
	Paused   = ":paused"   // of a queue: its pause and its limits, as long as there are any
	Errors   = ":errors"   // of a queue: the last error of each task that is to be tried again
	Counts   = ":counts"   // of a queue: how many tasks were done, retried and so on
	Done     = ":done"     // of a queue: the finished tasks that are remembered
	Results  = ":results"  // of a queue: the results of these, and their attempts
	Stock    = ":stock"    // of a queue: how many units there are of each item for sale, and are held and sold
	Workers  = ":workers"  // of a queue: the workers that live
	Groups   = ":groups"   // of a queue: which tasks of its groups are in play, and which wait
	Wake     = ":wake"     // what the channels begin with on which waiters are notified, see lock_line.lua and queue_idle.lua
	Canceled = ":canceled" // of a queue: the channel on which the IDs of cancelled tasks are published
	Fence    = ":fence"    // of a lock: the last fence that was reserved
	Line     = ":line"     // the processes that wait for a lock, or the clients that wait for a queue's tasks
)

// Endings are those of all companions, and behind them those that are reserved: an earlier version
// had companions that end so, or a later one may, and a name that it has to refuse must not be in
// use by then.
var Endings = []string{
	Tasks, State, Dead, Leased, Paused, Errors, Counts, Done, Results, Workers, Wake, Canceled, Fence, Line,
	":idle", ":dropped", ":watch", ":limits", ":layout", ":stock", ":attached", ":groups",
}

var (
	errLength   = fmt.Errorf("a name has 1 to %d bytes and a prefix at most as many", MaxLength)
	errBraces   = errors.New(`leave out the braces, or put text between one pair, as in "{eu}:orders"`)
	errOnlyATag = errors.New(`it is a hash tag and nothing else: put text beside it, as in "{eu}:orders"`)
)

// Key returns the main key of the lock or queue with that name, or says what is wrong
// with the name:
//
//   - it is empty, or longer than [MaxLength];
//   - it has braces that are not a hash tag: a companion, whose tag ends at the first
//     closing brace, could not hash to the same slot;
//   - it is a hash tag and nothing else: its companions would be those of the key that
//     is named within the braces;
//   - it has a hash tag and one of the [Endings]: it might be the companion of another
//     lock or queue, today or with a later version.
func Key(prefix, name string) (string, error) {
	if err := CheckLengths(prefix, name); err != nil {
		return "", err
	}
	key := prefix + name
	if !strings.ContainsAny(key, "{}") {
		return key, nil
	}
	if !HasHashTag(key) {
		return "", errBraces
	}
	if strings.HasPrefix(key, "{") && strings.Index(key, "}") == len(key)-1 {
		return "", errOnlyATag
	}
	for _, ending := range Endings {
		if strings.HasSuffix(key, ending) {
			return "", fmt.Errorf("with a hash tag, the ending %s is that of a companion key", ending)
		}
	}
	return key, nil
}

// CheckLengths says whether a prefix or a name is too long, or the name empty.
func CheckLengths(prefix, name string) error {
	if len(name) == 0 || len(name) > MaxLength || len(prefix) > MaxLength {
		return errLength
	}
	return nil
}

// Companion returns the companion of a main key that has this ending.
func Companion(key, ending string) string {
	if HasHashTag(key) {
		return key + ending
	}
	return "{" + key + "}" + ending
}

// HasHashTag reports whether Redis Cluster hashes only a part of the key: the part
// between the first opening brace and the first closing brace after it, unless that
// part is empty. See "Hash tags" in the Redis Cluster specification.
func HasHashTag(key string) bool {
	_, after, found := strings.Cut(key, "{")
	return found && strings.Index(after, "}") > 0
}
