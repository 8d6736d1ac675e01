// SPDX-License-Identifier: BSD-2-Clause

// Package provider calls providers' C functions. It knows which functions may be called without notifying Go's
// scheduler.
package provider

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/internal/defects"
	"github.com/goverbs/goverbs/internal/rights"
	"github.com/goverbs/goverbs/runtime"
)

// EnvCall is the environment variable that forces one way to call every queue whose options do not: blocking or system.
const EnvCall = "GOVERBS_CALL"

// WayOf returns how a function of a provider is called, and the provider's name: Software for a function of a backend
// in Go, or "" if it was not recognised. verb is the function's verb. forced is a way or "", and extra are rows that
// take precedence over [Providers].
func WayOf(fn uintptr, verb Verbs, forced string, extra []Provider) (name string, way runtime.Way, err error) {
	from := "QueueOptions.Way"
	if forced == "" {
		forced, from = rights.Getenv(EnvCall), EnvCall
	}
	name = providerOf(fn)
	if forced == "" {
		return name, fastest(name, verb, extra), nil
	}
	if way, err = parseWay(forced); err != nil {
		return name, 0, fmt.Errorf("rdma: %s: %w", from, err)
	}
	return name, way, nil
}

// HasDefect reports whether a provider has a defect of package defects in any release. It does not depend on the
// release in use: libraries are named by the private ABI, which has been rdmav34 for years, and distributions fix
// defects without changing a number. An unknown provider may be any.
func HasDefect(name, defect string) bool {
	return name == "" || defects.Of(name, defect)
}

// parseWay parses the name of a way.
func parseWay(name string) (runtime.Way, error) {
	var known []string
	for w := runtime.Blocking; w <= runtime.System; w++ {
		if w.String() == name {
			return w, nil
		}
		known = append(known, w.String())
	}
	return runtime.Blocking, fmt.Errorf("%q is not a way to call C; use one of %s", name, strings.Join(known, ", "))
}
