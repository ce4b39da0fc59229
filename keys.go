package sluice

import (
	"fmt"
	"strings"
)

// maxName is the most bytes that a name, a prefix or a task ID may have.
const maxName = 512

// keyOf returns the main key of a lock or queue, and the base from which its
// companions are named so that all of them hash to one Cluster slot:
//
//	main key  stock       companions {stock}:wake, ...
//	main key  {eu}:stock  companions {eu}:stock:wake, ...
//
// A key with a tag of its own that ends as a companion does might be that of
// another queue, and is refused. A key with braces that are not a hash tag would need a companion that cannot
// exist, since a tag ends at the first closing brace. It is refused.
func keyOf(prefix, name string) (key, base string, err error) {
	if len(name) == 0 || len(name) > maxName || len(prefix) > maxName {
		return "", "", fmt.Errorf("%w: a name has 1 to %d bytes and a prefix at most as many", ErrInvalidName, maxName)
	}
	key = prefix + name
	if !strings.ContainsAny(key, "{}") {
		return key, "{" + key + "}", nil
	}
	if !hasHashTag(key) {
		return "", "", fmt.Errorf("%w: braces that are not a hash tag", ErrInvalidName)
	}
	for _, suffix := range []string{":tasks", ":dead", ":wake", ":fence"} {
		if strings.HasSuffix(key, suffix) {
			return "", "", fmt.Errorf("%w: a hash tag, and the ending %s of a companion key", ErrInvalidName, suffix)
		}
	}
	return key, key, nil
}

// hasHashTag says whether Redis Cluster would hash only a part of the key: the
// part between the first opening brace and the first closing one after it, if
// that part is not empty.
func hasHashTag(key string) bool {
	_, after, found := strings.Cut(key, "{")
	return found && strings.Index(after, "}") > 0
}
