package redistest

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// Rules returns the access rules of docs/operations.md, as a user would paste them:
// of each ACL SETUSER line there the words after the user's name, in order.
func Rules(t testing.TB) (rules [][]string) {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	doc, err := os.ReadFile(filepath.Join(filepath.Dir(file), "../../docs/operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range regexp.MustCompile(`(?m)^redis-cli ACL SETUSER sluice (.*)$`).FindAllStringSubmatch(string(doc), -1) {
		rules = append(rules, strings.Fields(strings.ReplaceAll(line[1], "'", "")))
	}
	return rules
}
