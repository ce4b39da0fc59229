package web

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// site is a page on a server, and a visitor with a cookie jar.
type site struct {
	*testing.T
	rdb  redis.UniversalClient
	page *page
	url  string // without a slash at its end
	http *http.Client
	// fails has the server in front of the page refuse.
	fails *atomic.Bool
}

// newSite serves the page for a Redis.
func newSite(t *testing.T, rdb redis.UniversalClient, o Options) *site {
	t.Helper()
	h, err := New(rdb, o)
	require.NoError(t, err)
	fails := new(atomic.Bool)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fails.Load() {
			http.Error(w, "bad gateway", http.StatusBadGateway)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	client := &http.Client{Jar: jar, Transport: server.Client().Transport}
	return &site{T: t, rdb: rdb, page: h.page, url: server.URL + o.Prefix, http: client, fails: fails}
}

// later has the page look at everything anew, as it would a moment later.
func (s *site) later() {
	s.page.watch.names.expire()
	s.page.watch.mu.Lock()
	defer s.page.watch.mu.Unlock()
	for name, series := range s.page.watch.series {
		series.stats.expire()
		series.workers.expire()
		series.reasons.expire()
		s.page.lists.forget(name)
		s.page.tasks.forget(name)
	}
	s.page.tables.forget("")
	s.page.locks.forget("")
}

// answer is what the server has answered.
type answer struct {
	*http.Response
	body string
}

// has checks that the answer has each text, lacks that it has none.
func (a answer) has(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		require.True(t, strings.Contains(a.body, text), "%s lacks %q", a.Request.URL, text)
	}
}

func (a answer) lacks(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		require.False(t, strings.Contains(a.body, text), "%s has %q", a.Request.URL, text)
	}
}

// send sends a request.
func (s *site) send(r *http.Request) answer {
	s.Helper()
	response, err := s.http.Do(r)
	require.NoError(s, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(s, err)
	return answer{response, string(body)}
}

// get reads a page.
func (s *site) get(path string) answer {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), http.MethodGet, s.url+path, nil)
	require.NoError(s, err)
	return s.send(r)
}

// form returns the request of a form as a browser would send it from this site.
func (s *site) form(path string, values url.Values) *http.Request {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.url+path, strings.NewReader(values.Encode()))
	require.NoError(s, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	u, err := url.Parse(s.url)
	require.NoError(s, err)
	r.Header.Set("Origin", u.Scheme+"://"+u.Host)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return r
}

// post sends a form with the token of a page that was opened before.
func (s *site) post(path string, pairs ...string) answer {
	s.Helper()
	values := url.Values{"token": {s.token()}}
	for i := 0; i < len(pairs); i += 2 {
		values.Add(pairs[i], pairs[i+1])
	}
	return s.send(s.form(path, values))
}

// token returns the form token of this visitor.
func (s *site) token() string {
	s.Helper()
	u, err := url.Parse(s.url + "/")
	require.NoError(s, err)
	if len(s.http.Jar.Cookies(u)) == 0 {
		s.get("/queues/any")
	}
	for _, c := range s.http.Jar.Cookies(u) {
		if c.Name == formCookie {
			return token(c.Value)
		}
	}
	return ""
}

// newQueue returns a queue whose keys are removed at the end.
func newQueue(t *testing.T, rdb redis.UniversalClient, name string, opts ...sluice.QueueOption) *sluice.Queue {
	t.Helper()
	q, err := sluice.NewQueue(rdb, name, opts...)
	require.NoError(t, err)
	return q
}
