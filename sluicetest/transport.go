package sluicetest

import (
	"cmp"
	"net/http"
	"net/http/httptest"
)

// Transport returns an http.RoundTripper that calls h for each request, without a socket. So a
// client of your HTTP service works in a bubble, where a socket does not (a goroutine that waits
// for the network keeps the bubble's clock from moving).
//
//	client := &http.Client{Transport: sluicetest.Transport(shop)}
//	response, err := client.Post("http://shop/orders/1", "", nil)
//
// It calls h in the caller's goroutine. The request's context and body are the client's. RoundTrip
// returns when h does, with the whole response; so a handler that streams, upgrades the connection
// or never returns needs a socket. A panic of h is the caller's.
func Transport(h http.Handler) http.RoundTripper { return transport{h} }

type transport struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	served := r.Clone(r.Context())
	served.RequestURI, served.RemoteAddr, served.Host = r.URL.RequestURI(), "192.0.2.1:1234", cmp.Or(r.Host, r.URL.Host)
	served.URL.Scheme, served.URL.Host, served.URL.User, served.URL.Fragment = "", "", nil, "" // which a server does not see
	if served.Body == nil {
		served.Body = http.NoBody
	}
	defer func() { _ = served.Body.Close() }()
	w := httptest.NewRecorder()
	t.handler.ServeHTTP(w, served)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	response := w.Result()
	response.Request = r
	return response, nil
}
