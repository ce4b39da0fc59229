package web

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/internal/redistest"
)

// hostile are names that a page, a URL or a form may trip over.
var hostile = []string{
	"a/b", "/", "//", "/a", "a/", ".", "..", "../..", "~", "~..", "~~", "...", "%", "%2F", "%2e%2e", "%zz", "a?b=c", "?", "#", "a#b", "&amp;", "+", "a b", " ", " a ", "\t", "\n", "\r\n", "a\nb\rc",
	"<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, "javascript:alert(1)", "</table></main>", "<!--", "{{.}}", "${1}", "`",
	"\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x00", "a\x00b", "\x7f", "\u0085", "\u2028", "\ufeff", "abc\u202egpj.exe", "\u2067x\u2069", "\u200b", "\u00a0", "\ufffd", "\xff\xfe", "\xc3", "\xed\xa0\x80",
	"שלום", "\u0301\u0301\u0301", "日本語", "👩\u200d👩\u200d👧", `\`, `\n`, `\x1b`, `\u202e`, `"`, "'", "tasks", "queues", "any;x=y", "a,b", "C:\\x", strings.Repeat("x", 512), strings.Repeat("\xff", 512), strings.Repeat("<", 512),
}

func binary() string {
	var b strings.Builder
	for i := range 512 {
		b.WriteByte(byte(i))
	}
	return b.String()
}

// TestSegment_AnyNameComesBack: from the path of a URL, as a browser and the server treat it, and from a form.
func TestSegment_AnyNameComesBack(t *testing.T) {
	for _, name := range append(hostile, binary()) {
		s := segment(name)
		require.NotContains(t, []string{"", ".", ".."}, s)
		require.NotContains(t, s, "/")
		base, err := url.Parse("http://127.0.0.1/ops/")
		require.NoError(t, err)
		u, err := base.Parse("/ops/queues/" + s) // as browsers resolve it
		require.NoError(t, err)
		parts := strings.Split(u.EscapedPath(), "/")
		require.Len(t, parts, 4, "%q", name)
		back, err := url.PathUnescape(parts[3])
		require.NoError(t, err)
		require.Equal(t, name, fromSegment(back))

		value := formValue(name)
		require.Regexp(t, `^[!-~]*$`, value)
		back, err = fromFormValue(value)
		require.NoError(t, err)
		require.Equal(t, name, back)
	}
}

func FuzzText(f *testing.F) {
	for _, name := range append(hostile, binary()) {
		f.Add(name)
	}
	tags := regexp.MustCompile(`<(?:/?bdi|span class="(?:esc|none)"|/span)>`)
	f.Fuzz(func(t *testing.T, s string) {
		plain := shown(s)
		require.True(t, utf8.ValidString(plain))
		for _, r := range plain {
			require.True(t, isPlain(r, utf8.RuneLen(r)), "%q", r)
		}
		got := tags.ReplaceAllString(string(text(s)), "")
		require.NotContains(t, got, "<")
		if s != "" {
			require.Equal(t, plain, html.UnescapeString(got))
		}
		if !strings.Contains(s, `\`) {
			require.Equal(t, s, fromShown(plain), "what is copied from a page finds it")
		}
		back, err := fromFormValue(formValue(s))
		require.NoError(t, err)
		require.Equal(t, s, back)
	})
}

// unsafe is what no page may hold, whatever is in Redis: characters that a terminal or the direction of text obeys.
var unsafe = regexp.MustCompile("[\x00-\x08\x0b-\x1f\x7f\u0080-\u009f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]|<script>|<img|</table></main>")

func (a answer) requireSafe(t *testing.T) {
	t.Helper()
	require.True(t, utf8.ValidString(a.body))
	body := a.body
	require.Equal(t, 1, strings.Count(body, "</main>"))
	require.Nil(t, unsafe.FindStringIndex(body), "%s: %q", a.Request.URL, unsafe.FindString(body))
	require.Equal(t, 1, strings.Count(body, "<script"))
}

// TestPage_HostileTasks: IDs, headers, reasons and payloads of any bytes are shown as escapes, and their links lead to them.
func TestPage_HostileTasks(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	q := newQueue(t, rdb, name)
	ids := append(hostile, binary())
	var tasks []sluice.Task
	for _, id := range ids {
		tasks = append(tasks, sluice.Task{ID: id, Kind: id[:min(len(id), 256)], Payload: []byte(id), Header: map[string]string{id[:min(len(id), 256)]: id}})
	}
	_, err := q.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)
	s := newSite(t, rdb, Options{Write: true})
	list := func(state string) answer {
		got := s.get("/queues/" + segment(name) + "?n=250&state=" + state)
		got.requireSafe(t)
		return got
	}
	check := func(got answer) {
		got.body = html.UnescapeString(got.body)
		for _, id := range ids {
			got.has(t, `href="`+s.page.taskURL(name, id)+`"`, `value="`+formValue(id)+`"`)
		}
	}
	check(list("due"))
	for _, id := range ids {
		got := s.get("/queues/" + segment(name) + "/tasks/" + segment(id) + "?payload=1")
		require.Equal(t, http.StatusOK, got.StatusCode, "%q", id)
		got.requireSafe(t)
		got.has(t, `<h1 class="id">`+string(text(id))+"</h1>")

		found := s.get("/queues/" + segment(name) + "?id=" + url.QueryEscape(shown(id)))
		if !strings.Contains(id, `\`) && strings.TrimSpace(id) == id && id != "" {
			require.Equal(t, s.page.taskURL(name, id), found.Request.URL.EscapedPath(), "%q", id)
		}
	}
	s.get("/queues/" + segment(name) + "?id=" + url.QueryEscape("<script>nothing\u202e\x1b")).requireSafe(t)

	entries, err := q.Claim(t.Context(), len(ids), 1e12)
	require.NoError(t, err)
	list("leased")
	for _, e := range entries {
		require.NoError(t, q.Bury(t.Context(), e.ID, e))
	}
	check(list("dead"))
	pairs := []string{"do", "drop", "state", "dead", "n", "250"}
	for _, id := range ids {
		pairs = append(pairs, "id", formValue(id))
	}
	sure := s.post("/queues/"+segment(name)+"/tasks", pairs...)
	sure.requireSafe(t)
	sure.has(t, "Drop "+inspect.Count(int64(len(ids)))+" dead letters?")
	dropped := s.post("/queues/"+segment(name)+"/tasks", append(pairs, "sure", "1")...)
	dropped.requireSafe(t)
	dropped.has(t, inspect.Count(int64(len(ids)))+" tasks dropped for good.")
}

var link = regexp.MustCompile(`href="([^"]*)"`)

// links returns where the links of a page lead to.
func links(a answer) (urls []string) {
	for _, match := range link.FindAllStringSubmatch(a.body, -1) {
		urls = append(urls, html.UnescapeString(match[1]))
	}
	return urls
}

// TestPage_HostileNames: of queues and locks, those that are allowed.
func TestPage_HostileNames(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	s := newSite(t, rdb, Options{Write: true})
	locker, err := sluice.NewLocker(rdb, sluice.WithTTL(time.Hour))
	require.NoError(t, err)
	var names []string
	for _, name := range append(hostile, "{", "}", "a}b{", strings.ReplaceAll(strings.ReplaceAll(binary(), "{", ""), "}", "")) {
		q, err := sluice.NewQueue(rdb, name)
		if err != nil {
			require.ErrorIs(t, err, sluice.ErrInvalidName)
			got := s.get("/queues/" + segment(name))
			require.Equal(t, http.StatusBadRequest, got.StatusCode)
			got.requireSafe(t)
			continue
		}
		require.NoError(t, err)
		names = append(names, name)
		_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a"})
		require.NoError(t, err)
		_, err = locker.TryLock(t.Context(), name)
		require.NoError(t, err)
	}
	all, locks := s.get("/"), s.get("/locks")
	for _, name := range names {
		all.has(t, string(listName(name)))
		require.Contains(t, links(all), s.page.queueURL(name))
		require.Contains(t, links(locks), s.page.lockURL(name))
		for _, got := range []answer{s.get("/queues/" + segment(name)), s.get("/locks/" + segment(name))} {
			require.Equal(t, http.StatusOK, got.StatusCode, "%q", name)
			got.requireSafe(t)
			got.lacks(t, "no task is in this queue", ">Free<")
		}
		purged := s.post("/queues/"+segment(name), "do", "purge", "name", shown(name))
		purged.requireSafe(t)
		purged.has(t, "is purged")
		forced := s.post("/locks/"+segment(name), "do", "force", "name", shown(name))
		forced.requireSafe(t)
		forced.has(t, "forced open")
	}
	for _, got := range []answer{all, locks, s.get("/?q=" + url.QueryEscape("<script>\u202e")), s.get("/locks?match=" + url.QueryEscape("<script>[\x1b"))} {
		require.Equal(t, http.StatusOK, got.StatusCode)
		got.requireSafe(t)
	}
}
