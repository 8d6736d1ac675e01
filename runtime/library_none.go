// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux || android || !(amd64 || arm64 || loong64 || ppc64le || riscv64) || goverbs_static

package runtime

import "errors"

const opensLibraries = false

func openLibrary(string) (uintptr, error) { return 0, errors.New(withoutC) }

func findSymbol(uintptr, string) uintptr { return 0 }

func errnoLocation() uintptr { return 0 }

// GNU reports whether the process uses the GNU C library. The generated layouts contain its types.
func GNU() bool { return false }

func unsetPaths() {}
