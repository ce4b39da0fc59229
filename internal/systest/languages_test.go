// This file checks that the pages which exist in English and in Chinese say the same.

package systest_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/systest"
)

// onlyInChinese begins what the English page does not have, at the end of a Chinese one.
const onlyInChinese = "\n<!-- only in Chinese -->\n"

// outline is what two languages of one page have in common.
type outline struct {
	headings []int // their levels
	code     []string
	links    []string // of a page in both languages: to the English one
	names    []string // in backquotes, in alphabetical order, since languages have their own
	figures  []string // likewise
	columns  []int    // of each row of a table
}

// comments are what the comments of code look like, by its language.
var comments = map[string]*regexp.Regexp{
	"go":  regexp.MustCompile(`\s*//.*`),
	"sql": regexp.MustCompile(`\s*-- .*`),
	"sh":  regexp.MustCompile(`\s+# .*`),
	// The labels of a diagram are in the page's language, and its line breaks where that needs them.
	"mermaid": regexp.MustCompile(`"[^"]*"|\|[^|]*\||<br/>`),
}

// outlineOf returns the outline of a page, without the link to its other language.
func outlineOf(t *testing.T, page string) (o outline) {
	t.Helper()
	text, more, isLonger := strings.Cut(document(t, page), onlyInChinese)
	require.True(t, !isLonger || page == "docs/locks.zh-CN.md", "%s has a part that is only in Chinese", page)
	other := "[中文](" + filepath.Base(chineseOf(page)) + ")"
	if isChinese(page) {
		other = "[English](" + filepath.Base(englishOf(page)) + ")"
	}
	require.Regexp(t, `^# .*\n\n`+regexp.QuoteMeta(other)+`\n`, text, page)
	text = strings.Replace(text, other, "", 1)
	for _, block := range codeBlock.FindAllStringSubmatch(text, -1) {
		code := block[2]
		if comment := comments[block[1]]; comment != nil {
			code = comment.ReplaceAllString(code, "")
		}
		o.code = append(o.code, block[1]+"\n"+code)
	}
	text = codeBlock.ReplaceAllString(text, "")
	for _, bold := range regexp.MustCompile(`.?\*\*[^*]+\*\*.?`).FindAllString(text, -1) {
		const notBold = `^[\pL\pN]\*\*[\pP\pS]|[\pP\pS]\*\*[\pL\pN]$` // Markdown shows such stars
		require.NotRegexp(t, notBold, bold, page)
	}
	for line := range strings.Lines(text) {
		if level := len(line) - len(strings.TrimLeft(line, "#")); level > 0 {
			o.headings = append(o.headings, level)
		}
		if strings.HasPrefix(line, "|") {
			o.columns = append(o.columns, strings.Count(line, "|"))
		}
	}
	link := regexp.MustCompile(`\]\(([^()\s]+)\)`)
	for _, l := range link.FindAllStringSubmatch(more, -1) {
		inEnglish(t, page, l[1])
	}
	for _, l := range link.FindAllStringSubmatch(text, -1) {
		o.links = append(o.links, inEnglish(t, page, l[1]))
	}
	text = link.ReplaceAllString(text, "")
	name := regexp.MustCompile("`([^`]+)`")
	for _, n := range name.FindAllStringSubmatch(text, -1) {
		o.names = append(o.names, n[1])
	}
	text = name.ReplaceAllString(text, "")
	o.figures = regexp.MustCompile(`\d([\d.,:]*\d)?`).FindAllString(text, -1)
	slices.Sort(o.names)
	slices.Sort(o.figures)
	o.figures = slices.Compact(o.figures)
	return o
}

func isChinese(page string) bool { return strings.HasSuffix(page, ".zh-CN.md") }

func chineseOf(page string) string { return strings.TrimSuffix(page, ".md") + ".zh-CN.md" }

func englishOf(page string) string { return strings.TrimSuffix(page, ".zh-CN.md") + ".md" }

// inEnglish returns where a link of a page leads in the English pages: the headings of a page have
// the same order in both languages. A Chinese page leads to Chinese ones where there are.
func inEnglish(t *testing.T, page, link string) string {
	t.Helper()
	if !isChinese(page) || strings.Contains(link, "://") {
		return link
	}
	path, anchor, hasAnchor := strings.Cut(link, "#")
	to := page
	if path != "" {
		to = filepath.Join(filepath.Dir(page), path)
	}
	if !isChinese(to) {
		_, err := os.Stat(filepath.Join(systest.Root(t), chineseOf(to)))
		require.ErrorIs(t, err, fs.ErrNotExist, "%s leads to %s, which exists in Chinese", page, link)
		return link
	}
	if path != "" {
		path = englishOf(path)
	}
	if !hasAnchor {
		return path
	}
	at := slices.Index(systest.Anchors(document(t, to)), anchor)
	anchors := systest.Anchors(document(t, englishOf(to)))
	require.True(t, 0 <= at && at < len(anchors), "%s leads to %s, which is no heading of both languages", page, link)
	return path + "#" + anchors[at]
}

// TestReadme_LanguagesSayTheSame: a Chinese page has the headings, code, tables, links, names and
// figures of the English one.
func TestReadme_LanguagesSayTheSame(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob(filepath.Join(systest.Root(t), "docs", "*.zh-CN.md"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(pages), 6)
	for _, path := range append(pages, filepath.Join(systest.Root(t), "README.zh-CN.md")) {
		page, err := filepath.Rel(systest.Root(t), path)
		require.NoError(t, err)
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			english, chinese := outlineOf(t, englishOf(page)), outlineOf(t, page)
			require.Equal(t, english.headings, chinese.headings)
			require.Equal(t, english.code, chinese.code)
			require.Equal(t, english.columns, chinese.columns)
			require.Equal(t, english.links, chinese.links)
			require.Equal(t, english.names, chinese.names)
			require.Subset(t, chinese.figures, english.figures)
		})
	}
}
