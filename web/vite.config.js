// SPDX-License-Identifier: Apache-2.0
// One script and one style sheet, with the same names and the same bytes wherever they are built.
export default {
  clearScreen: false,
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    modulePreload: false,
    reportCompressedSize: false,
    rollupOptions: { output: { entryFileNames: "page.js", assetFileNames: "page[extname]", inlineDynamicImports: true } },
  },
};
