// Package store knows what is kept where in Redis: the keys of locks and queues, the scripts that
// work on them, with their arguments, and what they answer. No other package does.
//
// It makes requests, and reads replies. To send them is the business of [redisexec].
package store

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-go/sluice/internal/keyspace"
)

var (
	// ErrInvalid says that an argument is bad.
	ErrInvalid = errors.New("invalid argument")
	// ErrInvalidName is the ErrInvalid of a name or prefix.
	ErrInvalidName = fmt.Errorf("%w: bad name", ErrInvalid)
)

// MainKey returns the main key of a lock or queue. The error is ErrInvalidName.
func MainKey(prefix, name string) (string, error) {
	key, err := keyspace.Key(prefix, name)
	switch {
	case err == nil:
		return key, nil
	case keyspace.CheckLengths(prefix, name) != nil:
		return "", fmt.Errorf("%w: %w", ErrInvalidName, err)
	case strings.ContainsAny(prefix, "{}"): // the braces of both count
		name = prefix + name
	}
	return "", fmt.Errorf("%w %q: %w", ErrInvalidName, name, err)
}
