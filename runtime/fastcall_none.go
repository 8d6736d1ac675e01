// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux || android || !(amd64 || arm64 || loong64 || ppc64le || riscv64) || goverbs_static

package runtime

// fast is false: there is no C to call. Software backends still work.
const (
	fast   = false
	direct = false
)

const noCalls = "goverbs: " + withoutC

// CallDirect panics: this build cannot call C.
func CallDirect(*Bound, uintptr, uintptr) int32 { panic(noCalls) }

func systemCall3(uintptr, uintptr, uintptr, uintptr) int32   { panic(noCalls) }
func blockingCall3(uintptr, uintptr, uintptr, uintptr) int32 { panic(noCalls) }
func (f *frame) run()                                        { panic(noCalls) }
