package web_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/web"
)

// The page in a server of one's own, below a path, behind what that server asks its visitors for.
func ExampleNew() {
	m, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer m.Close()
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer func() { _ = rdb.Close() }()

	page, err := web.New(rdb, web.Options{Prefix: "/ops/sluice", Hosts: []string{"shop.example"}, Write: true})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/ops/sluice/", operatorsOnly(page)) // no http.StripPrefix: the page knows its prefix

	queue, err := sluice.NewQueue(rdb, "orders")
	if err != nil {
		panic(err)
	}
	if _, err := queue.Enqueue(context.Background(), sluice.Task{ID: "order-42"}); err != nil {
		panic(err)
	}

	server := httptest.NewServer(mux)
	defer server.Close()
	for _, user := range []string{"visitor", "operator"} {
		r, err := http.NewRequest(http.MethodGet, server.URL+"/ops/sluice/", nil)
		if err != nil {
			panic(err)
		}
		r.Host = "shop.example"
		r.SetBasicAuth(user, "secret")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			panic(err)
		}
		body, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		fmt.Println(user, answer.StatusCode, strings.Contains(string(body), "/ops/sluice/queues/orders"))
	}
	// Output:
	// visitor 401 false
	// operator 200 true
}

// operatorsOnly stands for what a server asks its visitors for.
func operatorsOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != "operator" || password != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="operators"`)
			http.Error(w, "operators only", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
}
