package sluice

import (
	"fmt"
	"strings"
)

// maxName is the most bytes that a name, a prefix or a task ID may have.
const maxName = 512

// keyOf returns the main key of a lock or queue. Its companions are named after
// it so that all of them hash to one Cluster slot:
//
//	main key  stock       companions {stock}:wake, ...
//	main key  {eu}:stock  companions {eu}:stock:wake, ...
//
// A key with a tag of its own that ends as a companion does might be that of
// another queue, and is refused. So is a key that is a tag and nothing else, whose
// companions would be those of the key within the braces. So is a key with braces that
// are not a hash tag: it would need a companion that cannot exist, since a tag ends at
// the first closing brace.
func keyOf(prefix, name string) (key string, err error) {
	if err := checkLengths(prefix, name); err != nil {
		return "", err
	}
	key = prefix + name
	if !strings.ContainsAny(key, "{}") {
		return key, nil
	}
	if !hasHashTag(key) {
		return "", fmt.Errorf("%w: braces that are not a hash tag", ErrInvalidName)
	}
	if strings.HasPrefix(key, "{") && strings.Index(key, "}") == len(key)-1 {
		return "", fmt.Errorf("%w: a hash tag and nothing else", ErrInvalidName)
	}
	for _, suffix := range []string{":tasks", ":dead", ":wake", ":fence"} {
		if strings.HasSuffix(key, suffix) {
			return "", fmt.Errorf("%w: a hash tag, and the ending %s of a companion key", ErrInvalidName, suffix)
		}
	}
	return key, nil
}

func checkLengths(prefix, name string) error {
	if len(name) == 0 || len(name) > maxName || len(prefix) > maxName {
		return fmt.Errorf("%w: a name has 1 to %d bytes and a prefix at most as many", ErrInvalidName, maxName)
	}
	return nil
}

// companion is the name of a key's companion.
func companion(key, suffix string) string {
	if hasHashTag(key) {
		return key + suffix
	}
	return "{" + key + "}" + suffix
}

// hasHashTag says whether Redis Cluster would hash only a part of the key: the
// part between the first opening brace and the first closing one after it, if
// that part is not empty.
func hasHashTag(key string) bool {
	_, after, found := strings.Cut(key, "{")
	return found && strings.Index(after, "}") > 0
}

// address is where a lock is on Redis.
type address struct {
	key     string
	channel string // on which its release is announced
	// The same as arguments of scripts.
	keys, fenced []any // the lock; the lock and its last fence
	wake         any   // the channel
}

func addressOf(prefix, name string) (*address, error) {
	key, err := keyOf(prefix, name)
	if err != nil {
		return nil, err
	}
	channel := companion(key, ":wake")
	return &address{key: key, channel: channel, keys: []any{key}, wake: channel}, nil
}
