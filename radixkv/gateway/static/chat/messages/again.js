// A further reply beside one, drawn otherwise than its conversation says, once. What held stands in the reply's tooltip.

import { Component, html } from "../../vendor/htm-preact.js";
import { ask } from "../../dialog.js";
import { SettingFields } from "../composer/settings_fields.js";
import { regenerate } from "../conversation/actions.js";
import { model, models } from "../conversation/model.js";
import { settings } from "../conversation/settings.js";

const STEP = 0.3; // of temperature
const HOTTEST = 2;

const anySeed = () => crypto.getRandomValues(new Uint32Array(1))[0];
const near = (temperature) => Math.round(100 * Math.min(HOTTEST, Math.max(0, temperature))) / 100;

/** The ways to ask for another reply than this one. */
export function waysAgain(message) {
  const { temperature, model } = { ...settings.peek(), ...message.details?.settings };
  const again = (asked) => () => regenerate(message, { n: 1, ...asked });
  const isKnown = temperature !== undefined;
  return [
    isKnown && temperature < HOTTEST && { name: `Hotter: ${near(temperature + STEP)}`, icon: "flame", act: again({ temperature: near(temperature + STEP) }) },
    isKnown && temperature > 0 && { name: `Cooler: ${near(temperature - STEP)}`, icon: "snowflake", act: again({ temperature: near(temperature - STEP) }) },
    { name: "Another seed", icon: "dices", act: () => again({ seed: anySeed() })() },
    ...models.peek().filter(({ id }) => model && id !== model).map(({ id }) => ({ name: `With ${id}`, icon: "bot", act: again({ model: id }) })),
    { name: "Other settings", icon: "sliders-horizontal", act: () => askAgain(message) },
  ].filter(Boolean);
}

/** Ask with which settings, and draw a reply with them. */
export async function askAgain(message) {
  const asked = await ask("again-title", (close) => html`<${AgainForm} message=${message} close=${close} />`);
  if (asked) regenerate(message, { n: 1, ...asked });
}

/** It begins with what held for the reply, as far as the conversation says it too or it is what one changes most. */
class AgainForm extends Component {
  state = { asked: begun(this.props.message) };

  change = (part) => this.setState({ asked: { ...this.state.asked, ...part } });

  submit = (event) => {
    event.preventDefault();
    this.props.close({ ...this.state.asked, model: this.state.asked.model ?? model.peek()?.id });
  };

  render({ close }, { asked }) {
    return html`<form onSubmit=${this.submit}>
      <h2 id="again-title">Again with other settings</h2>
      <p class="soft small">For one further reply. An empty field is as the conversation has it.</p>
      <div class="settings"><${SettingFields} settings=${asked} onChange=${this.change} /></div>
      <div class="choices"><button class="main">Reply again</button> <button type="button" onClick=${() => close()}>Cancel</button></div>
    </form>`;
  }
}

function begun({ details }) {
  const { temperature, model } = details?.settings ?? {};
  return { ...settings.peek(), ...(temperature !== undefined && { temperature }), ...(model && { model }) };
}
