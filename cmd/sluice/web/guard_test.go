package web

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// routes are all pages, and all places to which forms go.
var routes = map[string][]string{
	http.MethodGet:  {"/", "/queues/a", "/queues/a?state=dead", "/queues/a/tasks", "/queues/a/tasks/b", "/locks", "/locks/a", "/nowhere"},
	http.MethodPost: {"/queues/a", "/queues/a/tasks", "/queues/a/tasks/b", "/locks/a"},
}

func TestPage_EachAnswerIsGuarded(t *testing.T) {
	s := newSite(t, redistest.Mini(t).Client(t), Options{Write: true, Prefix: "/ops/sluice"})
	for method, paths := range routes {
		for _, path := range append(paths, "/queues", "/assets/nothing.js") {
			r, err := http.NewRequestWithContext(t.Context(), method, s.url+path, nil)
			require.NoError(t, err)
			got := s.send(r)
			h := got.Header
			require.Equal(t, "no-store", h.Get("Cache-Control"), path)
			require.Equal(t, "DENY", h.Get("X-Frame-Options"), path)
			require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"), path)
			require.Equal(t, "same-origin", h.Get("Referrer-Policy"), path)
			require.Contains(t, h.Get("Content-Security-Policy"), "default-src 'none'", path)
			require.Contains(t, h.Get("Content-Security-Policy"), "frame-ancestors 'none'", path)
			require.NotContains(t, h.Get("Content-Security-Policy"), "unsafe", path)
			got.lacks(t, "style=")
			require.NotRegexp(t, ` on[a-z]+=`, got.body, path)
		}
	}
}

// TestPage_TheNonceIsOfOneAnswer: script and style are those that carry the nonce in the header.
func TestPage_TheNonceIsOfOneAnswer(t *testing.T) {
	s := newSite(t, redistest.Mini(t).Client(t), Options{})
	seen := map[string]bool{}
	for range 2 {
		got := s.get("/")
		_, rest, found := strings.Cut(got.Header.Get("Content-Security-Policy"), "script-src 'nonce-")
		require.True(t, found)
		nonce, _, _ := strings.Cut(rest, "'")
		require.Len(t, nonce, 64)
		require.Equal(t, 2, strings.Count(got.body, `nonce="`+nonce+`"`))
		require.False(t, seen[nonce])
		seen[nonce] = true
	}
}

func TestPage_FilesAreKeptByBrowsers(t *testing.T) {
	s := newSite(t, redistest.Mini(t).Client(t), Options{Prefix: "/ops"})
	body := s.get("/").body
	for _, f := range s.page.files {
		require.Contains(t, body, `"/ops/assets/`+f.name+`"`)
		got := s.get("/assets/" + f.name)
		require.Equal(t, http.StatusOK, got.StatusCode)
		require.Equal(t, f.kind, got.Header.Get("Content-Type"))
		require.Contains(t, got.Header.Get("Cache-Control"), "immutable")
	}
}

// TestPage_IsAskedByItsOwnNameOnly: a foreign name that resolves to this server gets nothing.
func TestPage_IsAskedByItsOwnNameOnly(t *testing.T) {
	rdb := redistest.Mini(t).Client(t)
	ask := func(o Options, host string) int {
		h, err := New(rdb, o)
		require.NoError(t, err)
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		h.ServeHTTP(w, r)
		return w.Code
	}
	for _, host := range []string{"127.0.0.1", "127.0.0.1:6380", "[::1]:80", "[::1]", "10.1.2.3:8080", "localhost", "LocalHost:8080", "localhost."} {
		require.Equal(t, http.StatusOK, ask(Options{}, host), host)
	}
	for _, host := range []string{"", "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "ops.example", "*", ":80", "127.0.0.1@evil.example", "[::1].evil.example"} {
		require.Equal(t, http.StatusMisdirectedRequest, ask(Options{}, host), host)
		require.Equal(t, http.StatusMisdirectedRequest, ask(Options{Hosts: []string{"other.example", ""}}, host), host)
	}
	require.Equal(t, http.StatusOK, ask(Options{Hosts: []string{"Ops.example:443"}}, "ops.example"))
	require.Equal(t, http.StatusOK, ask(Options{Hosts: []string{"ops.example"}}, "OPS.example.:8443"))
	require.Equal(t, http.StatusOK, ask(Options{Hosts: []string{"*"}}, "any.example"))
}

func TestPage_ReadOnlyUnlessToldOtherwise(t *testing.T) {
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	q := newQueue(t, rdb, name)
	_, err := q.Enqueue(t.Context(), sluice.Task{ID: "a"})
	require.NoError(t, err)
	s := newSite(t, rdb, Options{})
	for _, path := range routes[http.MethodPost] {
		got := s.post(strings.Replace(path, "/queues/a", "/queues/"+segment(name), 1), "do", "purge", "name", name, "sure", "1", "id", "a")
		require.Equal(t, http.StatusForbidden, got.StatusCode, path)
		got.has(t, "read-only")
	}
	for _, path := range []string{"/", "/queues/" + segment(name), "/queues/" + segment(name) + "/tasks/a", "/locks/a"} {
		got := s.get(path)
		require.Empty(t, got.Cookies(), path)
		got.lacks(t, `method="post"`)
		got.lacks(t, `value="purge"`)
	}
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Due)
}

// TestPage_FormsFromElsewhereAreRefused: each of the three guards alone refuses.
func TestPage_FormsFromElsewhereAreRefused(t *testing.T) {
	rdb := redistest.Redis(t).Client(t)
	name := redistest.Name(t)
	q := newQueue(t, rdb, name)
	_, err := q.Enqueue(t.Context(), sluice.Task{ID: "a"})
	require.NoError(t, err)
	s := newSite(t, rdb, Options{Write: true, Hosts: []string{"ops.example"}})
	good := url.Values{"token": {s.token()}, "do": {"purge"}, "name": {name}}
	with := func(change func(r *http.Request)) int {
		r := s.form("/queues/"+segment(name), good)
		change(r)
		return s.send(r).StatusCode
	}
	origin := func(o string) func(*http.Request) { return func(r *http.Request) { r.Header.Set("Origin", o) } }
	site := func(o string) func(*http.Request) { return func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", o) } }
	for what, change := range map[string]func(*http.Request){
		"origin of another host":          origin("https://evil.example"),
		"origin of another port":          origin("http://127.0.0.1:1"),
		"opaque origin":                   origin("null"),
		"origin that is none":             origin("://"),
		"origin that ends like it":        origin("https://evil-ops.example"),
		"another site":                    site("cross-site"),
		"another host of the site":        site("same-site"),
		"neither":                         func(r *http.Request) { r.Header.Del("Origin"); r.Header.Del("Sec-Fetch-Site") },
		"typed by hand":                   site("none"),
		"a cookie that is another's":      func(r *http.Request) { r.Header.Set("Cookie", formCookie+"="+strings.Repeat("0", 64)) },
		"an empty cookie":                 func(r *http.Request) { r.Header.Set("Cookie", formCookie+"=") },
		"a host that is not the server's": func(r *http.Request) { r.Host = "evil.example" },
	} {
		jar := s.http.Jar
		if strings.Contains(what, "cookie") {
			s.http.Jar = nil // it would add its own
		}
		require.NotContains(t, []int{http.StatusOK, http.StatusSeeOther}, with(change), what)
		s.http.Jar = jar
	}
	for what, values := range map[string]url.Values{
		"no token":    {"do": {"purge"}, "name": {name}},
		"other token": {"do": {"purge"}, "name": {name}, "token": {token("x")}},
	} {
		require.Equal(t, http.StatusForbidden, s.send(s.form("/queues/"+segment(name), values)).StatusCode, what)
	}
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Due, "a form from elsewhere was obeyed")

	// What was refused above would else have been obeyed; a proxy in front may give the handler
	// another Host.
	require.Equal(t, http.StatusOK, with(origin("https://ops.example")))
	stats, err = q.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, stats.Due)
}

// TestPage_TheCookieIsOfThisPageOnly: no script gets it, no other site's request brings it.
func TestPage_TheCookieIsOfThisPageOnly(t *testing.T) {
	h, err := New(redistest.Mini(t).Client(t), Options{Write: true, Prefix: "/ops"})
	require.NoError(t, err)
	for _, scheme := range []string{"http", "https"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, scheme+"://127.0.0.1/ops/", nil))
		cookies := w.Result().Cookies()
		require.Len(t, cookies, 1)
		c := cookies[0]
		require.True(t, c.HttpOnly)
		require.Equal(t, http.SameSiteStrictMode, c.SameSite)
		require.Equal(t, "/ops/", c.Path)
		require.Equal(t, scheme == "https", c.Secure)
		require.NotContains(t, w.Body.String(), c.Value, "the token in forms does not tell the cookie")
	}
}

func TestPage_OtherMethodsAreRefused(t *testing.T) {
	s := newSite(t, redistest.Mini(t).Client(t), Options{Write: true})
	for _, method := range []string{http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions, http.MethodTrace} {
		for _, paths := range routes {
			for _, path := range paths {
				r, err := http.NewRequestWithContext(t.Context(), method, s.url+path, nil)
				require.NoError(t, err)
				got := s.send(r)
				require.Equal(t, http.StatusMethodNotAllowed, got.StatusCode, method+path)
				require.Contains(t, got.Header.Get("Allow"), "GET")
			}
		}
	}
	for _, path := range []string{"/", "/locks", "/nowhere"} {
		r := s.form(path, url.Values{"token": {s.token()}})
		require.Equal(t, http.StatusMethodNotAllowed, s.send(r).StatusCode, path)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodHead, s.url+"/", nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, s.send(r).StatusCode)
}

func TestPage_StaysBelowItsPrefix(t *testing.T) {
	rdb := redistest.Mini(t).Client(t)
	h, err := New(rdb, Options{Prefix: "/ops/sluice"})
	require.NoError(t, err)
	ask := func(target string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1/", nil)
		u, err := url.Parse("http://127.0.0.1" + target)
		require.NoError(t, err)
		r.URL = u
		h.ServeHTTP(w, r)
		return w
	}
	require.Equal(t, http.StatusOK, ask("/ops/sluice/").Code)
	require.Equal(t, "/ops/sluice/", ask("/ops/sluice").Header().Get("Location"))
	require.Equal(t, "/ops/sluice/", ask("/ops/sluice/queues").Header().Get("Location"))
	for _, target := range []string{"/", "/ops/sluice2/", "/ops/", "/ops/sluice//", "/ops/sluice//evil.example", "/ops/sluice/../x", "/ops/sluice/./x", "/ops/sluice/x/.."} {
		w := ask(target)
		require.Equal(t, http.StatusNotFound, w.Code, target)
		require.Empty(t, w.Header().Get("Location"), target)
	}
	for _, prefix := range []string{"ops", "/", "/ops/", "//ops", "/a b", "/a?b", "/a#b", "/a%2Fb", `/a\b`} {
		_, err := New(rdb, Options{Prefix: prefix})
		require.ErrorIs(t, err, sluice.ErrInvalid, prefix)
	}
}
