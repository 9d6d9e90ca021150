import js from "@eslint/js";
import hooks from "eslint-plugin-react-hooks";
import globals from "globals";

export default [
  { ignores: ["**/vendor/**"] },
  js.configs.recommended,
  {
    files: ["static/**/*.js"],
    languageOptions: { ecmaVersion: 2024, sourceType: "module", globals: globals.browser },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    plugins: { "react-hooks": hooks },
    rules: {
      "react-hooks/rules-of-hooks": "error",
      "react-hooks/exhaustive-deps": "off" /* an effect here names what it is run for, not all that it reads */,
      "no-unused-vars": ["error", { args: "after-used", argsIgnorePattern: "^_" }],
      "no-undef": "error",
      "no-promise-executor-return": "off",
      "no-self-compare": "error",
      "no-unmodified-loop-condition": "error",
      "no-use-before-define": ["error", { functions: false, classes: false, variables: false }],
      "prefer-const": "error",
      eqeqeq: ["error", "always", { null: "ignore" }],
    },
  },
  { files: ["static/tree/words.js"], rules: { "react-hooks/rules-of-hooks": "off" } }, // its use() is no hook
];
