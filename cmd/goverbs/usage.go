// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"math"
	"time"
)

// usageError is an error about flags that the parser accepts.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// unlimited is the end of a range without a maximum.
const unlimited = math.MaxInt64

// within returns a usage error if the value of a flag is out of range.
func within[T int | int64 | time.Duration](flag string, value, least T, most int64) error {
	switch {
	case value >= least && int64(value) <= most:
		return nil
	case most == unlimited:
		return usageError{fmt.Errorf("%s %v: less than %v", flag, value, least)}
	}
	return usageError{fmt.Errorf("%s %v: not in %v to %v", flag, value, least, T(most))}
}

// maxGIDIndex is the largest index of a GID in an address.
const maxGIDIndex = math.MaxUint8
