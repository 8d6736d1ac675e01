// Package stress proves that package runtime calls C without breaking what Go's runtime relies on: its worker program runs in
// processes of its own, built in several ways, under storms of signals, collections and stops of the world. The tests of package
// runtime are run for other machines as well, by qemu's user mode.
package stress
