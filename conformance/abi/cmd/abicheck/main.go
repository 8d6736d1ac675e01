// SPDX-License-Identifier: BSD-2-Clause

// Command abicheck is the old name of verbsabi. It does nothing but name the new command.
package main

import (
	"fmt"
	"os"
)

func main() {
	const module = "github.com/goverbs/goverbs/conformance/abi/cmd/"
	fmt.Fprintf(os.Stderr, "abicheck is now called verbsabi; use go get -tool %[1]sverbsabi %[1]sabicheck@none\n",
		module)
	os.Exit(2)
}
