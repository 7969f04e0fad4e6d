// SPDX-License-Identifier: Apache-2.0

// Package object puts the compiled programs and their maps into the kernel: it sets sizes and
// load-time constants, opens or makes the maps with their pins, carries flows over from maps of
// another layout, and says whether programs that are attached work by the maps that are open. A
// Collection is what is loaded of one family. What maps hold and where programs are attached is for
// others to say.
package object
