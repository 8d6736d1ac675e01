// SPDX-License-Identifier: BSD-2-Clause

// Package provider calls providers' C functions. It has a list of functions that may be called without notifying Go's
// scheduler.
package provider

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/internal/defects"
	"github.com/goverbs/goverbs/internal/rights"
	"github.com/goverbs/goverbs/runtime"
)

// EnvCall is the environment variable with the way to call C, blocking or system, for queues without QueueOptions.Way.
const EnvCall = "GOVERBS_CALL"

// WayOf returns how to call a provider's function, and the provider's name, which is Software for a backend in Go and
// "" if unknown. verb is the function's verb. forced is a way or "". Rows in extra take precedence over [Providers].
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

// HasDefect reports whether any release of a provider has a defect of package defects. The release in use is unknown:
// libraries are named after the private ABI, which has been rdmav34 for years, and distributions fix defects without
// changing the release. An unknown provider may have every defect.
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
	return runtime.Blocking, fmt.Errorf("unknown way to call C: %q; use one of %s", name, strings.Join(known, ", "))
}
