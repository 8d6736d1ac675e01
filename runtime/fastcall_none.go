// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux || android || !(amd64 || arm64 || loong64 || ppc64le || riscv64)

package runtime

import "unsafe"

// fast is false: there is no C to call. Software backends work all the same.
const (
	fast   = false
	direct = false
)

func postDirect(p *Poster, c *Chain) error { return postUnusual(p, c) }
func postCall(*Poster, *Chain) int32       { panic(noCalls) }

func pollDirect(p *Poller, n int, wcs unsafe.Pointer) int { return pollUnusual(p, n, wcs) }

const noCalls = "goverbs: this build cannot call C functions; only builds for linux on amd64, arm64, loong64, " +
	"ppc64le and riscv64 can"

func systemCall3(uintptr, uintptr, uintptr, uintptr) int32   { panic(noCalls) }
func blockingCall3(uintptr, uintptr, uintptr, uintptr) int32 { panic(noCalls) }
func (f *frame) run()                                        { panic(noCalls) }
