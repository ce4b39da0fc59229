package systest

import (
	"regexp"
	"strings"
)

// Anchors returns the names by which links lead to the headings of a Markdown document, in their
// order.
func Anchors(document string) (names []string) {
	document = regexp.MustCompile("(?s)```.*?```").ReplaceAllString(document, "")
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(document, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N}_\- ]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}
